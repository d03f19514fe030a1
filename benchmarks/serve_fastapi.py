"""What people do today: FastAPI around CTranslate2, a call of `translate_batch` a request.

`benchmarks/serve.py` starts it as a process: DIR PORT SEARCH. The endpoint is synchronous, so
FastAPI runs it in its pool of threads, and CTranslate2 works without Python's lock. A worker of one
thread for each core translates more single sentences than a worker with all threads.
"""

import json
import os
import sys
from typing import Any

import ctranslate2
import fastapi
import pydantic
import sentencepiece
import uvicorn


class Body(pydantic.BaseModel):
    """A request."""

    text: str


class Translated(pydantic.BaseModel):
    """Its answer."""

    text: str


def create_app(folder: str, search: dict[str, Any]) -> fastapi.FastAPI:
    """The application.

    Args:
      folder: an export with `source.spm` and `target.spm`.
      search: arguments of each call.
    """
    num_cores = len(os.sched_getaffinity(0))
    translator = ctranslate2.Translator(folder, inter_threads=num_cores, intra_threads=1)
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=f"{folder}/{side}.spm")
        for side in ("source", "target")
    )
    app = fastapi.FastAPI()

    @app.post("/translate")
    def translate(body: Body) -> Translated:
        tokens = source.encode(body.text, out_type=str)
        (result,) = translator.translate_batch([tokens], **search)
        return Translated(text=target.decode(result.hypotheses[0]))

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        return {"status": "ready"}

    return app


if __name__ == "__main__":
    path, number, settings = sys.argv[1:]
    app = create_app(path, json.loads(settings))
    uvicorn.run(app, port=int(number), log_level="warning", access_log=False)

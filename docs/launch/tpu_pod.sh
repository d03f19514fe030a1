#!/bin/bash
# Starts one process on every host of a TPU slice; JAX detects the hosts (--distributed).
# Each host needs the package with `pip install '.[tpu,gcs]'` in .venv, and the prepared data set in
# its own $TFDS_DATA_DIR. The run and the tokenised corpus are in the bucket.
set -euo pipefail
TPU=${TPU:?name of the TPU VM}
ZONE=${ZONE:?its zone}
WORKDIR=${WORKDIR:?gs://bucket/run, which all hosts can write to}

gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="
  cd transformer_jax &&
  .venv/bin/python train.py --config=wmt14_en_de_big --workdir=$WORKDIR --distributed \
    --config.data.cache_dir=$WORKDIR/cache \
    --config.parallel.data=-1 --config.parallel.fsdp=16 --config.data.batch_tokens=524288"

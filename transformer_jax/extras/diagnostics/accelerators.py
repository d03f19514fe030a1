"""What accelerators can do at most, by the data sheets of their makers."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """One device, as JAX counts devices.

    Attributes:
      memory_bytes: its main memory.
      flops: a second, of products of bfloat16 with sums in float32; None: not in the table.
      memory_rate: bytes a second between the main memory and the processor.
      network_rate: bytes a second to all its neighbours together (ICI of TPUs, NVLink of GPUs).
    """

    memory_bytes: int
    flops: float | None = None
    memory_rate: float | None = None
    network_rate: float | None = None


# By JAX's name of the device's kind.
ACCELERATORS = {
    "TPU v4": Accelerator(32 * GIB, 275e12, 1228e9, 300e9),
    "TPU v5 lite": Accelerator(16 * GIB, 197e12, 819e9, 200e9),
    "TPU v5": Accelerator(95 * GIB, 459e12, 2765e9, 600e9),
    "TPU v5p": Accelerator(95 * GIB, 459e12, 2765e9, 600e9),
    "TPU v6 lite": Accelerator(32 * GIB, 918e12, 1640e9, 448e9),
    "TPU7x": Accelerator(192 * GIB),
    "NVIDIA A100-SXM4-40GB": Accelerator(40 * GIB, 312e12, 1555e9, 300e9),
    "NVIDIA A100-SXM4-80GB": Accelerator(80 * GIB, 312e12, 2039e9, 300e9),
    "NVIDIA H100 80GB HBM3": Accelerator(80 * GIB, 989e12, 3350e9, 450e9),
    "NVIDIA H200": Accelerator(141 * GIB, 989e12, 4800e9, 450e9),
}


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The least seconds that a device needs for each part of a step; the largest bounds the step.

    Attributes:
      products: for the FLOPs of matrix products.
      memory: for what is read from main memory and written to it.
      network: for what is sent to other devices, none of it overlapped.
    """

    products: float
    memory: float
    network: float


def roofline(
    kind: str, flops: float, memory_bytes: float, sent_bytes: dict[str, int]
) -> Roofline | None:
    """The roofline of a step on one device; None where its rates are not in the table.

    Args:
      kind: JAX's name of the device's kind.
      flops: of the device.
      memory_bytes: that it reads and writes.
      sent_bytes: by kind of collective operation. An all-reduce sends each byte twice.
    """
    device = ACCELERATORS.get(kind)
    if device is None or not (device.flops and device.memory_rate and device.network_rate):
        return None
    sent = sum(sent_bytes.values()) + sent_bytes.get("all-reduce", 0)
    return Roofline(
        flops / device.flops, memory_bytes / device.memory_rate, sent / device.network_rate
    )

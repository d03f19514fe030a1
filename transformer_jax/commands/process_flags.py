"""Flags of the commands that several processes may share, and connecting by them."""

from absl import flags

from transformer_jax.commands import command_line
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags."""
    command_line.define_text("coordinator_address", None, "HOST:PORT", "HOST:PORT of process 0.")
    flags.DEFINE_integer("num_processes", None, "Processes of the run, the same for all.", 1)
    flags.DEFINE_integer("process_id", None, "Number of this process, from 0.", 0)
    flags.DEFINE_bool(
        "distributed",
        None,
        "Let JAX find the other processes (SLURM, TPU pods, MPI, Kubernetes). Without it only "
        "processes of srun and mpirun are found.",
    )
    flags.DEFINE_integer("connect_timeout", 300, "Seconds to wait for the other processes.", 1)


def connect(saves: bool = True) -> None:
    """Connects to the other processes of the run, if there are any.

    Args:
      saves: whether the command listens for SIGTERM and preemption notices, to save.

    Raises:
      UserError: flags are missing, or the other processes are not found.
    """
    from transformer_jax import distributed

    given = [FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id]
    if any(value is not None for value in given):
        if None in given:
            raise UserError(
                "--coordinator_address, --num_processes and --process_id go together; "
                "use --distributed to let JAX find them."
            )
        if FLAGS.process_id >= FLAGS.num_processes:
            raise UserError(
                f"--process_id={FLAGS.process_id} must be below --num_processes="
                f"{FLAGS.num_processes}: they count from 0."
            )
    elif FLAGS.distributed is False or not (
        FLAGS.distributed or distributed.launched_with_others()
    ):
        return
    distributed.connect(
        FLAGS.workdir,
        FLAGS.coordinator_address,
        FLAGS.num_processes,
        FLAGS.process_id,
        FLAGS.connect_timeout,
        saves,
    )


def refuse(feature: str) -> None:
    """Refuses a feature to one of several processes.

    Raises:
      UserError: this is one of several processes.
    """
    from transformer_jax import distributed

    given = (FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id, FLAGS.distributed)
    if any(given) or distributed.launched_with_others():
        raise UserError(
            f"{feature} runs in one process; start it without the flags of several processes."
        )

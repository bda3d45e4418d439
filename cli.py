"""The lab's command.  Verbs live in `cudalab/commands/`; whatever is slow to import is imported where it is used."""

import os
import signal
import sys


def stop(number, frame):
    """Ctrl-C while nothing is at work yet: there is nothing to put in order."""
    os.write(2, b"interrupted\n")
    os._exit(130)


COMMAND = os.path.basename(sys.argv[0]) in ("cli.py", "cudalab")  # what the process is; otherwise a program or a test imports this
if COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, stop)  # while the rest is imported; `Lab.invoke` puts Python's back

import contextlib
import errno

import click

from cudalab import __version__
from cudalab.commands import artefacts, emulated, fragments, inspect, roofline, run, store, study, trace
from cudalab.errors import LabError


class Lab(click.Group):
    """Prints an error as one line and exits 1, or 2 where the command's words are wrong; Ctrl-C exits 130."""

    def invoke(self, ctx):
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except LabError as error:
            raise click.ClickException(str(error)) from None
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else " ".join(filter(None, (ctx.command_path, ctx.invoked_subcommand)))
            raise click.UsageError(f"{error.format_message().rstrip('.')} ('{where} --help' shows what there is)") from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            if not error.filename:  # what is left in its buffer would fail once more at the end
                with contextlib.suppress(OSError):
                    sys.stdout.close()
            raise click.ClickException(f"the disk is full, {error.filename or 'the output'} is not complete: make room") from None
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            leave_a_compiler_that_works(130)
            ctx.exit(130)


def leave_a_compiler_that_works(code: int) -> None:
    """End the process at once where NVRTC is still at work on what nobody waits for; see `nvrtc.abandoned`."""
    nvrtc = sys.modules.get("cudalab.nvrtc")
    if COMMAND and nvrtc and nvrtc.abandoned():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or a full disk: what can be said is said
                stream.flush()
        os._exit(code)


@click.group(cls=Lab, context_settings=dict(help_option_names=["-h", "--help"], max_content_width=110))
@click.version_option(__version__)
@click.option("--dumps", type=click.Path(file_okay=False), metavar="DIR", help="Where builds lie.  [default: dumps/, $CUDALAB_DUMPS]")
@click.option("--results", type=click.Path(file_okay=False), metavar="DIR", help="Where rows lie.  [default: results/, $CUDALAB_RESULTS]")
def main(dumps, results):
    """A GPU kernel lab: every step of a ladder is one .cu file, checked, timed and compared with the best library.

    \b
    python cli.py list                  what there is
    python cli.py bench step5           check it, time it, compare it with cuBLAS
    python cli.py diff step4 step5      what made the difference
    """
    for name, folder in (("CUDALAB_DUMPS", dumps), ("CUDALAB_RESULTS", results)):
        if folder:
            os.environ[name] = folder  # the environment, so that every build of this run goes there


def keep_stdout_for_data():
    """What a kernel prints goes to stderr: the driver writes it to file descriptor 1, which becomes stderr's; stdout is a copy of it."""
    if sys.stdout is not None and sys.stderr is not None:
        sys.stdout.flush()
        data, encoding, errors = os.dup(1), sys.stdout.encoding, sys.stdout.errors
        os.dup2(2, 1)
        sys.stdout = os.fdopen(data, "w", encoding=encoding, errors=errors)


for verb in (inspect.list_, inspect.show, run.check, run.bench, artefacts.dump, artefacts.diff, emulated.profile, run.tune,
             study.study, fragments.fragments, roofline.roofline, roofline.run, trace.trace, store.results, store.doctor):
    main.add_command(verb)


def start():
    """The command of a process of its own."""
    keep_stdout_for_data()
    sys.exit(main())


if __name__ == "__main__":
    start()

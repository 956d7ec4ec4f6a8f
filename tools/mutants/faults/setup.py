"""Faults in what looks at a set-up, and in what is installed: the doctor, completion, the wheel."""

from __future__ import annotations

from planted import Mutant

DOCTOR = "operations/doctor/__init__.py"
FOLDERS = "operations/doctor/folders.py"
DATABASES = "operations/doctor/databases.py"
MEMCACHED = "operations/doctor/memcached.py"
SERVICE = "operations/doctor/service.py"
MACHINE = "operations/doctor/machine.py"
FINDINGS = "operations/doctor/findings.py"
COMPLETION = "cli/completion.py"


def examined(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_doctor.py",))


def completed(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_completion.py",))


def wheeled(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_wheel.py",))


FAULTS = [
    examined(
        "the doctor waits for a disk that hangs",
        "folder_that_hangs",
        (DOCTOR, "self.join(max(0.0, give_up_at - time.monotonic()))", "self.join()"),
    ),
    examined(
        "a doctor's wrong finding is no failure",
        "exit_code",
        ("cli/upkeep.py", "return 1 if bad else 0\n\n\ndef", "return 0\n\n\ndef"),
    ),
    examined(
        "a disk that is nearly full is fine",
        "nearly_full",
        (FOLDERS, "LITTLE_SHARE, PLENTY = 64 << 20,", "LITTLE_SHARE, PLENTY = 0,"),
    ),
    examined("a read-only disk is fine", "nearly_full", (FOLDERS, 'if "ro" in mount.options', "if False")),
    examined("a network file system is fine", "does_not_suit", (FOLDERS, '{"nfs", "nfs4",', '{"nfs",')),
    examined(
        "files of another user are fine",
        "another_user",
        (FOLDERS, "not os.access(path, wanted)", "not os.access(path, os.F_OK)"),
    ),
    examined("a store's clock is not compared", "clock_that_was_set", (FINDINGS, "if abs(ahead) <= FAR", "if True")),
    examined("an old library is fine", "too_old", (MACHINE, "if has and not fits(has, each.bounds)", "if False")),
    examined("fsync=off is fine", "postgresql", (DATABASES, 'settings["fsync"] != "on"', "False")),
    examined("missing rights are fine", "postgresql", (DATABASES, 'driver.ask(session, f"EXPLAIN {change}")', "pass")),
    examined("a lazy InnoDB is fine", "mariadb", (DATABASES, "if flush != 1", "if False")),
    examined("a read-only MariaDB is fine", "mariadb", (DATABASES, 'if read_only not in (0, "0", "OFF")', "if False")),
    examined("memcached that evicts is fine", "evicts", (MEMCACHED, 'settings["evictions"] != "off"', "False")),
    examined(
        "a token without TLS is fine", "without_tls", (SERVICE, "calls.tls is None and not _is_here(calls.host)", "False")
    ),
    completed(
        "options of a command are not completed", "bash or fish", (COMPLETION, "for name in option.names)]", "for name in ())]")
    ),
    completed(
        "values of an option are not completed", "bash", (COMPLETION, "words={quote(' '.join(option.values))}", "words=''")
    ),
    completed("fish forgets groups of commands", "fish", (COMPLETION, 'test "$chosen" = "$argv[1]"', "true")),
    wheeled(
        "Spark's session does not name its extra",
        "needs_an_extra_says and 3.11",
        ("spark/session.py", "except ImportError as error", "except ZeroDivisionError as error"),
    ),
    wheeled(
        "Arrow's messages do not name their extra",
        "needs_an_extra_says and 3.11",
        ("arrow.py", "except ImportError as error", "except ZeroDivisionError as error"),
    ),
    wheeled(
        "Django's backend does not name its extra",
        "needs_an_extra_says and 3.11",
        ("contrib/django/__init__.py", "import framework  #", "__doc__  #"),
    ),
    wheeled("the module is not the command line", "as_a_module and 3.11", ("__main__.py", "sys.exit(main())", "pass")),
    wheeled("a body may be anything", "strict_mode", ("queue/protocol.py", "body: bytes", "body: object")),
]

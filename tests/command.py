"""What the tests of the command expect of a run."""


def fails(result, *words, lines=1, code=1):
    """It ended with one line on stderr that holds the words (narration may come before it), and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    error = result.stderr[result.stderr.index("Error: "):]
    assert len(error.splitlines()) == lines or lines is None
    for word in words:
        assert word in error


def works(result):
    assert result.exit_code == 0, result.output
    return result

"""The data of stepwise figures."""


def step_files() -> dict[str, str]:
    return {}

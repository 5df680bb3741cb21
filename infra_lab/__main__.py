"""`python -m infra_lab` is `infra-lab`, also where the script is not on PATH."""

from infra_lab.cli.main import main

if __name__ == "__main__":
    main()

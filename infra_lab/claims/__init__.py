"""The ledger of claims: what interview answers assert about LLM inference, and what is so.

Every claim is a record in `data/`, a file a topic; where its truth is a matter of arithmetic, the
function of its name in `computed/` works it out with `infra_lab.calculators`.
"""

"""What `glottis reprice` and `glottis erase` say of a job that is done."""

from glottis.commands.jobs import told


def test_a_job_is_told_by_what_it_did_and_where_it_does_not_reach() -> None:
    counts = {"slots": 2, "events": 1500, "changed": 3, "price_revision": 4}
    assert told({"kind": "reprice", "counts": counts, "not_erased": []}) == [
        "reprice: 2 slots, 1,500 events, 3 changed (price book 4)"
    ]
    assert told({"kind": "erase", "principal": "p1", "counts": {"events": 1, "spans": 3}, "not_erased": ["backups"]}) == [
        "erase: 1 events, 3 spans",
        "not erased: backups",
    ]


def test_an_erasure_that_found_nothing_says_so() -> None:
    assert told({"kind": "erase", "principal": "p1", "counts": {"events": 0, "spans": 0}, "not_erased": []}) == [
        "erase: 0 events, 0 spans",
        "Nothing was stored of p1: `glottis usage --by user --json` shows the ids of who used something.",
    ]

"""The report that an auditor files, made of manifests and findings without Spark."""

from __future__ import annotations

import hashlib
import html
import json
import re
from importlib.metadata import version

import pytest

pytest.importorskip("pyspark")

import reports
from reports import CUT_MS, HOUR_MS, counted, finding, manifest_of
from txcore_spark.advice import ADVICE, RESUME_TABLE, advice_of, command_of
from txcore_spark.axis import POINTS_MAX, axis_of
from txcore_spark.command import lines_of
from txcore_spark.origin import origin_of
from txcore_spark.report import DATA, KIND_MAX, NAME, hash_of, page, write_report
from txcore_spark.store import Store
from txcore_spark.stories import ROW_STATES

from txcore.audit.verdicts import PARKED, VIA_TABLE, Severity, Verdict
from txcore.config import load
from txcore.ids import id_text


def lines(text):
    """Return the verdicts of the findings on a page, and the whole line and story of each."""
    return re.findall(r'<tbody data-kind="(\w+)".*?</tbody>', text, re.DOTALL)


def words(text):
    """Return the words of a page."""
    return " ".join(
        html.unescape(re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]+>", " ", text, flags=re.DOTALL)).split()
    )


def test_each_kind_has_lines_of_its_own_beside_many_of_another(tmp_path):
    """LEAK, CONFLICT and STUCK are on the page when CORRUPT alone would fill it."""
    many = [finding(Verdict.CORRUPT, number) for number in range(KIND_MAX + 50)]
    few = [finding(kind, 9_000 + n) for n, kind in enumerate((Verdict.LEAK, Verdict.CONFLICT, Verdict.STUCK))]
    store, manifest = Store(str(tmp_path)), manifest_of([*many, *few])
    store.begin()
    reports.write_findings(store, 7, [*many, *few])
    write_report(store, manifest)
    shown = (tmp_path / "runs" / "000007" / NAME).read_text(encoding="utf-8")
    found = lines(shown)
    assert {"CORRUPT": KIND_MAX, "LEAK": 1, "CONFLICT": 1, "STUCK": 1} == {kind: found.count(kind) for kind in found}
    assert f"{KIND_MAX} of {KIND_MAX + 50} CORRUPT" in words(shown)


def test_a_finding_has_its_times_fence_row_positions_and_story():
    """The line names them, and the story has each record in order with its time."""
    each = finding(Verdict.LEAK, 3)
    said = words(page(manifest_of([each]), [each]))
    line = said[said.index("LEAK " + id_text(each["tx"])) :]
    order = (
        "orders on main", "2026-09-21 13:13:20.000", "rolled back", "half orders.half/1@17", "op ROLLBACK",
        "target orders.created/0@3", "notify its consumers", "Story of", "4 records", "no time",
        "13:13:20.000 half orders.half/1@17 message 0 to orders.created", "13:13:21.500 op ROLLBACK",
        "alice: not paid", "13:13:22.500 target orders.created/0@3",
    )  # fmt: skip
    places = [line.index(text) for text in order[:6]]
    assert sorted(places) == places
    assert all(text in line for text in order)


def test_an_id_that_claims_another_birth_is_shown_beside_the_records_time():
    """The time of a finding is that of its records."""
    each = finding(Verdict.PHANTOM, born_ms=CUT_MS + 10**11, half_ms=CUT_MS - 1_000, op_ms=CUT_MS)
    each["target_ms"] = CUT_MS
    assert "2026-09-21 14:13:19.000 its id claims 2029-11-22 00:00:00.000" in words(page(manifest_of([each]), [each]))


def test_every_text_of_others_is_escaped():
    """Topics, reasons and groups come from records that anything may have written."""
    evil = '<script>alert("x")</script>'
    each = finding(Verdict.LEAK, places=[evil], texts=[evil], topic=evil)
    each["story"] = [reports.record(1, evil, 3, topic=evil, text=evil)]
    manifest = manifest_of([each], groups={evil: 0}, backends={evil: 0, "other": 1})
    manifest["origin"] = manifest["origin"] | {"host": evil}
    manifest["topics"][0]["topic"] = evil
    assert "<script>alert" not in page(manifest, [each])


def test_the_axis_is_what_was_judged_whatever_births_ids_claim():
    """Ids that claim 1970 and 2109, and a target of 1970, stretch no chart; the page counts them in words."""
    rows = [counted(CUT_MS - HOUR_MS, transactions=5, halves=5)]
    forged = [counted(1, is_recent=False, transactions=2), counted(2**42, is_recent=True, transactions=1)]
    axis = axis_of(manifest_of([]), rows + forged)
    assert "minute" == axis.unit
    assert (CUT_MS - 2 * HOUR_MS) // 60_000 * 60_000 == axis.moments[0]
    assert CUT_MS // 60_000 * 60_000 == axis.moments[-1]
    assert forged == axis.outside
    assert [5] == [each["transactions"] for step in axis.rows for each in step]
    said = words(page(manifest_of([], transactions=rows + forged), []))
    assert "No chart shows 3 transactions with a claimed birth outside" in said


def test_the_axis_is_even_and_short_for_a_year_of_hours():
    """Steps without a transaction are on the axis, and all transactions are in its at most `POINTS_MAX` steps."""
    first_ms = CUT_MS - 365 * 24 * HOUR_MS
    rows = [counted(first_ms + n * 50 * HOUR_MS, is_recent=False, transactions=1) for n in range(100)]
    topics = [{"first_ms": first_ms, "last_ms": CUT_MS, "half_ms": None}]  # all by the message table
    axis = axis_of(manifest_of([], topics=topics), rows)
    gaps = {later - earlier for earlier, later in zip(axis.moments, axis.moments[1:], strict=False)}
    assert {22 * HOUR_MS} == gaps
    assert "22 hours" == axis.unit
    assert len(axis.moments) <= POINTS_MAX
    assert 100 == sum(map(len, axis.rows))


def test_a_window_bounds_the_axis():
    """The axis ends with the births that the run was asked for."""
    manifest = manifest_of([], since_ms=CUT_MS - 60 * 60_000, until_ms=CUT_MS - 30 * 60_000)
    axis = axis_of(manifest, [counted(CUT_MS - 40 * 60_000, transactions=1)])
    assert (CUT_MS - 60 * 60_000) // 60_000 * 60_000 == axis.moments[0]
    assert (CUT_MS - 30 * 60_000) // 60_000 * 60_000 == axis.moments[-1]


def test_the_header_says_where_the_run_comes_from(tmp_path):
    """User, host, versions, brokers and databases by name, coverage, and the hash of the report's data."""
    found = [finding(Verdict.LEAK)]
    store, manifest = Store(str(tmp_path)), manifest_of(found)
    reports.write_findings(store, 7, found)
    digest = write_report(store, manifest)
    folder = tmp_path / "runs" / "000007"
    said = words((folder / NAME).read_text(encoding="utf-8"))
    for text in (
        "alice on audit-1", "txcore 0.1.0", "main (kafka://kafka-1:9092)", "other (nats://nats-1:4222)",
        "shop (postgresql+psycopg://shop:***@db-1/shop)", "1 of 1 partition whole, 12,345 records, 0 gaps", digest,
    ):  # fmt: skip
        assert text in said
    data = (folder / DATA).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    assert id_text(found[0]["tx"]) == json.loads(data)["findings"][0]["tx"]
    assert hash_of(manifest | {"report_sha256": digest}, found) == digest
    assert hash_of(manifest | {"records": 1}, found) != digest


@pytest.mark.parametrize(("count", "ending"), [(1, ""), (2, "s")])
def test_one_of_a_kind_is_no_plural(count, ending):
    """Report and terminal say "1 topic", "1 record", "1 gap", "1 partition" and "1 transaction", but "2 topics"."""
    names = [f"orders.{number}" for number in range(count)]
    ends = [{"source": 0, "partition": each, "start": 0, "end": 9, "gone": 0, "seal": ""} for each in range(count)]
    gap = {"backend": "main", "log": "op", "name": "orders", "source": 9, "partition": 9, "start": 0, "end": 1}
    manifest = manifest_of(
        [],
        report_sha256="", records=count, ends=ends,
        gaps=[gap | {"why": "not read", "place": 9, "is_for_good": False}] * count,
        unread={"main": names}, refused={"main": dict.fromkeys(names, "no stream")},
        transactions=[counted(CUT_MS - HOUR_MS), counted(1, is_recent=False, transactions=count)],
    )  # fmt: skip
    said, terminal = words(page(manifest, [])), "\n".join(lines_of(manifest, "report.html"))
    for text in (f"left out {count} topic{ending} that", f"{count} topic{ending} of no group cannot be read"):
        assert text in said
        assert text in terminal
    assert f"{count} record{ending} read" in said
    assert f"{count} record{ending} read" in terminal
    assert f"of {count} partition{ending} whole, {count} record{ending}, {count} gap{ending}" in said
    assert f"No chart shows {count} transaction{ending} with" in said


def test_a_run_notes_its_user_host_versions_and_places_without_passwords(tmp_path):
    """The URLs are those of the configuration, without passwords and options."""
    path = tmp_path / "txcore.toml"
    path.write_text(
        '[backends.main]\nurl = "kafka://alice:secret@kafka-1:9092?tls=true"\n'
        '[databases.shop]\nurl = "postgresql+psycopg://shop:secret@db-1/shop"\n[groups.orders]\ndatabase = "shop"\n',
        encoding="utf-8",
    )
    found = origin_of(load(path, environment={}))
    assert set(found) == set(reports.ORIGIN)
    assert all(found.values())
    assert version("txcore") == found["versions"]["txcore"]
    assert {"main": "kafka://alice:***@kafka-1:9092"} == found["brokers"]
    assert reports.ORIGIN["databases"] == found["databases"]


def test_messages_of_the_table_and_of_several_brokers_have_columns():
    """Each broker of a group has a line, with what went by the message table and what came to other brokers."""
    rows = [
        counted(CUT_MS - HOUR_MS, transactions=10, halves=4, targets=17, by_table=6, table_targets=13, elsewhere=2),
        counted(CUT_MS - HOUR_MS, home=1, transactions=1, halves=1),
    ]
    said = words(page(manifest_of([], transactions=rows), []))
    assert "targets on other brokers by message table its targets in doubt since" in said
    assert "orders main 10 4 0 0 0 0 17 2 6 13" in said
    assert "orders other 1 1 0 0 0 0 0 0 0 0" in said


def test_every_kind_has_its_next_step():
    """Each verdict's advice is on the page, and those that an operator can repair have a command."""
    assert set(Verdict) == set(ADVICE)
    said = words(page(manifest_of([]), []))
    assert all(text in said for text in ADVICE.values())
    violations = {each for each in Verdict if each.severity is Severity.VIOLATION} - {Verdict.LEAK}
    assert all(command_of(each, 0, has_rows=True) for each in violations)
    assert RESUME_TABLE == command_of(Verdict.UNDELIVERABLE, PARKED, has_rows=True)
    assert not command_of(Verdict.LOST, 1, has_rows=False)
    assert "--no-land" in advice_of(Verdict.LOST, has_rows=False)


def test_every_state_of_a_fence_row_has_words():
    """No line shows a bare number."""
    assert set(range(max(VIA_TABLE) + 1)) == set(ROW_STATES)


@pytest.fixture
def opened(tmp_path, chromium):
    """Return a function that opens a page with nine findings in Chromium, and fails for an error of its script."""
    found = [finding(kind, 10 * n + m, row=n) for n, kind in enumerate(KINDS) for m in range(3)]
    path = tmp_path / NAME
    path.write_text(page(manifest_of(found), found), encoding="utf-8")
    errors = []

    def open_page(width):
        shown = chromium.new_page(viewport={"width": width, "height": 800})
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.goto(path.as_uri())
        return shown

    yield open_page
    assert [] == errors


KINDS = (Verdict.STUCK, Verdict.LEAK, Verdict.DUP_TARGET)
VISIBLE = "[...document.querySelectorAll('#findings > tbody')].filter(each => each.offsetParent)"


def shown_kinds(shown):
    """Return the verdicts of the lines that are visible, in their order."""
    return shown.evaluate(f"{VISIBLE}.map(each => each.dataset.kind)")


def test_findings_are_searched_and_sorted_without_a_server(opened):
    """The words that are searched may be in the story too; the count of the lines is beside them."""
    shown = opened(1280)
    shown.get_by_label("verdict").select_option("LEAK")
    assert ["LEAK"] * 3 == shown_kinds(shown)
    shown.get_by_label("search").fill("ALICE created/0@12")
    assert ["LEAK"] == shown_kinds(shown)
    assert "1 of 9 findings" == shown.locator("output").inner_text()
    shown.get_by_label("search").fill("")
    shown.get_by_label("verdict").select_option("every verdict")
    for kinds in (["LEAK", "STUCK", "DUP_TARGET"], ["DUP_TARGET", "STUCK", "LEAK"]):
        shown.get_by_role("button", name="verdict").click()
        assert kinds == shown_kinds(shown)[::3]


@pytest.mark.parametrize("width", [1280, 390])
def test_no_line_is_wider_than_the_screen(opened, width):
    """A phone shows each finding as a card, a wide screen as a line; the story opens where it is touched."""
    shown = opened(width)
    story = shown.locator("#findings .records").first
    assert not story.is_visible()
    shown.locator("summary").first.click()
    assert story.is_visible()
    assert width >= shown.evaluate("document.documentElement.scrollWidth")
    assert (width > 700) == shown.locator("#findings > thead").is_visible()


def test_paper_has_every_story_and_no_search(opened):
    """Stories are open while the page is printed, and closed again after it."""
    shown = opened(1280)
    shown.emulate_media(media="print")
    is_open = "[...document.querySelectorAll('details')].map(each => each.open)"
    seen = []
    for event in ("beforeprint", "afterprint"):
        shown.evaluate(f"dispatchEvent(new Event('{event}'))")
        seen.append(set(shown.evaluate(is_open)))
    assert [{True}, {False}] == seen
    assert not shown.locator(".tools").is_visible()

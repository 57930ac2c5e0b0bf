"""The certificate of a run: made of kept rows, chained, signed, published; one message is checked against it."""

from __future__ import annotations

import hmac
import json
import re
import subprocess
import sys
from hashlib import sha256

import msgspec
import pytest

pytest.importorskip("pyarrow")

from certified import KEY, OTHER_KEY, Runs, sent
from txcore_spark import certifying
from txcore_spark.anomalies import Forgery
from txcore_spark.certifying import NAME, certificate_of, certify, prove

from txcore import cli
from txcore.audit import certificate as certificates
from txcore.audit.certificate import Certificate, Proof, ProofError
from txcore.audit.verdicts import Verdict
from txcore.digest import digest_of
from txcore.errors import UsageError
from txcore.ids import id_text
from txcore.wire import decode_half


@pytest.fixture
def runs(tmp_path):
    """An empty store."""
    return Runs(tmp_path)


@pytest.fixture
def keys(runs):
    """The auditor's keys."""
    return certificates.keys_in(str(runs.keys()))


def checked(proof, message, keys=None):
    """Check a message against a proof, as the command does."""
    if keys is not None:
        certificates.require_signed(proof.certificate, keys)
    certificates.require_covered(proof)
    certificates.require_message(proof, sent(message))
    certificates.require_sent(proof.entry)


def test_each_message_of_a_run_is_proven(runs, keys):
    """Every message of five transactions agrees with its proof, and the entry has the database's digest."""
    ids = runs.add(*[None] * 5, size=3)
    certify(runs.store, keys)
    for each in ids:
        proof = prove(runs.store, each)
        for index in range(3):
            checked(proof, runs.message_of(each, index), keys)
        assert proof.entry.digest.startswith(proof.entry.row)
        assert 32 == len(proof.entry.row)
        assert "the digest in its fence row agrees" in certificates.outcome_text(proof.entry)


def test_the_certified_digest_is_that_of_the_wire(runs, keys):
    """The digest of an entry is the one that the producer writes into the fence row."""
    (each,) = runs.add(None, size=3)
    certify(runs.store, keys)
    history = runs.maker.make(each, int.from_bytes(each[:6], "big"), None, 3)
    half = decode_half(next(record.body for record in history.records if record.log == "half"))
    assert digest_of(half.messages).hex() == prove(runs.store, each).entry.digest


ALTERED = {
    "topic": ("topic, key, body or a header", lambda m: m | {"topic": m["topic"] + "x"}),
    "key": ("topic, key, body or a header", lambda m: m | {"key": None}),
    "body": ("topic, key, body or a header", lambda m: m | {"body": m["body"].replace("b", "c", 1)}),
    "header": ("topic, key, body or a header", lambda m: m | {"headers": m["headers"] | {"n": "7"}}),
    "more": ("topic, key, body or a header", lambda m: m | {"headers": m["headers"] | {"evil": ""}}),
    "group": ("names group 'stock'", lambda m: m | {"headers": m["headers"] | {"txcore-group": "stock"}}),
    "order": ("the order differs", lambda m: m | {"headers": renamed(m, ":1")}),
    "index": ("none with index 9", lambda m: m | {"headers": renamed(m, ":9")}),
    "capitals": ("with an id in small letters", lambda m: m | {"headers": other_id(m, str.upper)}),
    "hyphens": ("with an id in small letters", lambda m: m | {"headers": other_id(m, lambda t: t.replace("-", ""))}),
    "zeros": ("with an id in small letters", lambda m: m | {"headers": renamed(m, ":00")}),
    "second key": ("topic, key, body or a header", lambda m: m | {"headers": m["headers"] | {"txcore-key": "evil"}}),
    "id": ("the message is one of transaction 00", lambda m: m | {"headers": renamed(m, ":0", "00")}),
}


def other_id(message, change):
    """Return a message's headers with its id in another form."""
    return message["headers"] | {"txcore-id": change(message["headers"]["txcore-id"])}


def renamed(message, index, start=""):
    """Return a message's headers with another index, and another start of its id."""
    name = message["headers"]["txcore-id"]
    return message["headers"] | {"txcore-id": start + name[len(start) :].removesuffix(":0") + index}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_message_is_refused_with_what_differs(runs, keys, name):
    """The sentence names content, group, order, index or id."""
    (each,) = runs.add(None)
    certify(runs.store, keys)
    reason, altered = ALTERED[name]
    message = runs.message_of(each)
    checked(prove(runs.store, each), message)
    with pytest.raises((ProofError, UsageError), match=reason):
        checked(prove(runs.store, each), altered(message))


def test_every_changed_byte_of_a_proof_is_refused(runs, keys):
    """No byte of the proof, and of the certificate in it, can be another one."""
    ids = runs.add(*[None] * 3)
    certify(runs.store, keys)
    whole = msgspec.json.encode(prove(runs.store, ids[1]))
    message = runs.message_of(ids[1])
    checked(certificates.decode(whole, Proof, "proof.json"), message, keys)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x20 if chr(changed[place]).isalpha() else 1
        with pytest.raises(ProofError):
            checked(certificates.decode(bytes(changed), Proof, "proof.json"), message, keys)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcome": "rolled back"}, "does not lead to the certified root"),
        ({"findings": ["LEAK"]}, "does not lead to the certified root"),
        ({"digest": "00" * 32}, "does not lead to the certified root"),
    ],
)
def test_another_entry_than_the_certified_one_is_refused(runs, keys, change, reason):
    """A proof cannot say anything else of its transaction."""
    (each, _) = runs.add(None, None)
    certify(runs.store, keys)
    proof = prove(runs.store, each)
    with pytest.raises(ProofError, match=reason):
        certificates.require_covered(
            msgspec.structs.replace(proof, entry=msgspec.structs.replace(proof.entry, **change))
        )


@pytest.mark.parametrize(
    ("kind", "outcome", "row"),
    [
        (None, "committed", "agrees"),
        (Verdict.LEAK, "rolled back", "no digest"),
        (Verdict.STUCK, "open", "no digest"),
        (Verdict.LOST, "committed", "no digest"),
        (Forgery.REPLACED, "committed", "another one"),
        (Forgery.MISSENT, "open", "another one"),
    ],
)
def test_an_entry_has_the_outcome_and_the_digests_of_its_rows(runs, keys, kind, outcome, row):
    """Outcome by logs and fence row; whether the database vouches for the content."""
    (each,) = runs.add(kind, size=1)
    certify(runs.store, keys)
    entry = prove(runs.store, each).entry
    assert outcome == entry.outcome
    assert row in certificates.outcome_text(entry)


@pytest.mark.parametrize(
    ("kind", "said"), [(Verdict.LEAK, "rolled back, with findings LEAK"), (None, "committed, with findings LEAK")]
)
def test_a_message_that_was_wrongly_sent_is_refused(runs, keys, kind, said):
    """The certificate covers it, and says that it was rolled back, or what the audit found."""
    (each,) = runs.add(kind, size=1)
    runs.find(each, Verdict.LEAK)
    certify(runs.store, keys)
    with pytest.raises(ProofError, match=f"rightly sent: {said}"):
        checked(prove(runs.store, each), runs.message_of(each), keys)


def test_a_warning_is_shown_and_refuses_nothing(runs, keys):
    """A target that is there twice is the same message."""
    (each,) = runs.add(Verdict.DUP_TARGET, size=1)
    runs.find(each, Verdict.DUP_TARGET)
    certify(runs.store, keys)
    proof = prove(runs.store, each)
    checked(proof, runs.message_of(each), keys)
    assert "with findings DUP_TARGET" in certificates.outcome_text(proof.entry)


def test_certificates_are_chained_and_hold_the_hours_since_the_one_before(runs, keys):
    """A run without a certificate leaves no hole: the next one has its hours too."""
    (first,) = runs.add(None)
    one = certify(runs.store, keys)
    runs.add(None, hour=1)
    (third,) = runs.add(None, hour=2)
    two = certify(runs.store, keys)
    assert "" == one.content.previous
    assert one.head == two.content.previous
    assert [1, 2] == [len(each.content.hours) for each in (one, two)]
    assert [1, 3] == [prove(runs.store, each).certificate.content.run for each in (first, third)]
    assert one == certify(runs.store, keys, 1)
    with pytest.raises(UsageError, match="run 3 is certified already"):
        certify(runs.store, keys, 2)


def test_rows_of_a_partition_that_was_read_again_count_once(runs, keys):
    """A later run has read the last records of the topic again: the first reading does not count."""
    (each,) = runs.add(None)
    cut = {"run": 1, "source": 3, "partition": 0, "end": 0}
    runs.add(None, hour=1, ragged=[cut], buckets={str(int.from_bytes(each[:6], "big") // 3_600_000): 2})
    certify(runs.store, keys)
    assert "" == prove(runs.store, each).entry.digest


def test_births_outside_of_a_window_are_not_covered(runs, keys):
    """A run with --since and --until certifies what it has judged."""
    early, late = runs.add(None), runs.add(None, since_ms=0, until_ms=1)
    certify(runs.store, keys, 1)
    certify(runs.store, keys, 2)
    assert prove(runs.store, early[0]).certificate.content.run == 1
    with pytest.raises(UsageError, match="no certificate in the store covers"):
        prove(runs.store, late[0])


def test_many_hours_are_read_in_parts(runs, keys, monkeypatch):
    """The roots do not depend on the number of rows that are read at once."""
    ids = [runs.add(None, hour=hour)[0] for hour in range(3)]
    whole = certify(runs.store, keys)
    (runs.folder / "audit/runs/000003" / NAME).unlink()
    monkeypatch.setattr(certifying, "HOUR_ROWS_MAX", 1)
    assert whole == certify(runs.store, keys)
    assert 3 == len(whole.content.hours) == len({prove(runs.store, each).begin_ms for each in ids})


def test_changed_rows_are_refused(runs, keys):
    """The rows of a certified hour must give the same root again."""
    (each,) = runs.add(None)
    certify(runs.store, keys)
    other = Runs(runs.folder / "other")
    (runs.folder / "other").mkdir()
    other.add(None, None)
    rows = "audit/runs/000001/rows/part-0.parquet"
    (runs.folder / rows).write_bytes((other.folder / rows).read_bytes())
    with pytest.raises(ProofError, match="the kept rows of this hour are not those"):
        prove(runs.store, each)


def test_a_run_without_rows_has_no_certificate(runs, keys):
    """The error names the option."""
    runs.add(None, rows=[])
    with pytest.raises(UsageError, match="--no-land"):
        certify(runs.store, keys)
    with pytest.raises(UsageError, match="run 1 has no certificate"):
        certificate_of(runs.store, 1)


def test_heads_are_published_outside_of_the_store(runs, keys):
    """One line per run, once, also of those that were certified without publishing; a file in the store is refused."""
    heads = runs.folder / "heads.txt"
    made = []
    for hour, published in enumerate(("", str(heads), "", "", str(heads))):
        runs.add(None, hour=hour)
        made.append(certify(runs.store, keys, published=published))
        assert made[-1] == certify(runs.store, keys, published=published)
    lines = [line.split() for line in heads.read_text(encoding="utf-8").splitlines()]
    assert [[str(each.content.run), each.head] for each in made] == [[run, head] for run, _, head in lines]
    with pytest.raises(UsageError, match="is in the store"):
        certify(runs.store, keys, published=str(runs.folder / "audit" / "heads.txt"))


def test_a_store_that_was_changed_after_publishing_is_refused(runs, keys):
    """A first certificate that was made anew, with the right key, is not the published one."""
    heads = runs.folder / "heads.txt"
    runs.add(None)
    certify(runs.store, keys, published=str(heads))
    runs.add(None, hour=1)
    certify(runs.store, keys)  # not published
    forged = certificate_of(runs.store, 1).content
    forged = certificates.signed(msgspec.structs.replace(forged, exit_code=0, limits=[]), keys)
    runs.store.write(1, NAME, msgspec.json.encode(forged))
    runs.add(None, hour=2)
    with pytest.raises(ProofError, match="the certificate before that of run 2 is not the one that it names"):
        certify(runs.store, keys, published=str(heads))
    (runs.folder / "audit/runs/000002" / NAME).unlink()
    with pytest.raises(ProofError, match="certificate of run 1 is not the one whose head"):
        certify(runs.store, keys, published=str(heads))


def forged(store, run, **changes):
    """Write what a program that has the store, but no key, can make of a certificate; return it."""
    found = certificate_of(store, run)
    made = msgspec.structs.replace(found, content=msgspec.structs.replace(found.content, **changes))
    store.write(run, NAME, msgspec.json.encode(made))
    return made


@pytest.mark.parametrize("published", ["heads.txt", ""])
def test_a_certificate_that_no_key_signed_is_not_built_upon(runs, keys, published):
    """A changed one is neither published nor named as the one before; its signature is looked at first."""
    heads = runs.folder / "heads.txt"
    runs.add(None)
    certify(runs.store, keys, published=str(heads))
    runs.add(None, hour=1)
    certify(runs.store, keys)  # its head is not published
    evil = forged(runs.store, 2, hours=[])
    runs.add(None, hour=2)
    with pytest.raises(ProofError, match="certificate of run 2 differs from what key 'k1' has signed"):
        certify(runs.store, keys, published=published and str(heads))
    assert evil.head not in heads.read_text(encoding="utf-8")
    assert not runs.store.has(3, NAME)


def test_a_published_certificate_needs_no_key_of_its_time(runs, keys):
    """Its head vouches for it when its key is no longer in the file."""
    heads = runs.folder / "heads.txt"
    runs.add(None)
    certify(runs.store, certificates.keys_in(str(runs.keys(OTHER_KEY))), published=str(heads))
    runs.add(None, hour=1)
    assert 2 == certify(runs.store, keys, published=str(heads)).content.run


def test_a_certificate_of_another_run_is_refused(runs, keys):
    """A signed certificate that was copied beside a later run does not pass for that run's."""
    runs.add(None)
    certify(runs.store, keys)
    runs.add(None, hour=1)
    runs.store.write(2, NAME, runs.store.read(1, NAME))
    with pytest.raises(ProofError, match="is the certificate of run 1, not of run 2"):
        certify(runs.store, keys)


def test_a_certificate_of_a_run_over_everything_leaves_no_hole(runs, keys):
    """`--mode once` builds on no run, so its certificate ends no hour of the incremental runs."""
    runs.add(None)
    certify(runs.store, keys)
    (second,) = runs.add(None, hour=1)  # an incremental run without a certificate
    alone = {"rows": [3], "buckets": {}}
    runs.add(None, hour=2, **alone)
    certify(runs.store, keys)
    runs.add(None, hour=3, rows=[1, 2, 4])
    made = certify(runs.store, keys)
    assert made.content.previous == certificate_of(runs.store, 3).head
    assert prove(runs.store, second).certificate == made


def test_hours_do_not_end_at_a_certificate_that_no_key_signed(runs, keys):
    """One that was put beside an older run is looked at too, although the published head is a later one."""
    heads = runs.folder / "heads.txt"
    runs.add(None)
    certify(runs.store, keys, published=str(heads))
    runs.add(None, hour=1)
    runs.add(None, hour=2, rows=[3], buckets={})
    certify(runs.store, keys, published=str(heads))
    runs.store.write(2, NAME, runs.store.read(1, NAME).replace(b'"run":1', b'"run":2'))
    runs.add(None, hour=3, rows=[1, 2, 4])
    with pytest.raises(ProofError, match="certificate of run 2 differs from what key 'k1' has signed"):
        certify(runs.store, keys, published=str(heads))


def test_a_certificate_of_another_key_is_refused(runs, keys):
    """The name of the key is the same."""
    (each,) = runs.add(None)
    certify(runs.store, certificates.keys_in(str(runs.keys(OTHER_KEY))))
    with pytest.raises(ProofError, match="differs from what key 'k1' has signed"):
        certificates.require_signed(prove(runs.store, each).certificate, keys)


def command(*arguments):
    """Run the command and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", *map(str, arguments)])
    return ended.value.code


@pytest.fixture
def files(runs, capsys):
    """The files of one message: message, proof, keys and published heads."""
    (each,) = runs.add(None)
    found = {name: runs.folder / name for name in ("message.json", "proof.json", "heads.txt")}
    found["message.json"].write_text(json.dumps(runs.message_of(each)), encoding="utf-8")
    config = runs.config()
    assert 0 == command(
        "certificate", "--keys", runs.keys(), "--publish", found["heads.txt"], "--config", config, "--json"
    )
    shown = json.loads(capsys.readouterr().out)
    assert (1, 1, 1) == (shown["run"], shown["hours"], shown["transactions"])
    assert 0 == command("proof", id_text(each), "--config", config, "--out", found["proof.json"])
    assert "committed, without a finding" in capsys.readouterr().out
    assert 0 == command("proof", id_text(each), "--config", config, "--json")
    assert capsys.readouterr().out == found["proof.json"].read_text(encoding="utf-8") + "\n"
    return found | {"keys": runs.keys(), "head": shown["head"]}


@pytest.mark.parametrize("vouched", [("--keys", "keys"), ("--published", "heads.txt"), ("--published", "head")])
def test_the_commands_make_a_certificate_and_verify_a_message(files, capsys, vouched):
    """With the key, the file of heads or one head; one changed byte is refused with 2 and one sentence."""
    given = ["--proof", files["proof.json"], vouched[0], files[vouched[1]]]
    assert 0 == command("verify", files["message.json"], *given)
    assert "is as run 1 found it" in capsys.readouterr().out
    text = files["message.json"].read_text(encoding="utf-8")
    files["message.json"].write_text(text.replace("body 0", "body 1"), encoding="utf-8")
    assert 2 == command("verify", files["message.json"], *given)
    printed = capsys.readouterr()
    assert "differs in its topic, key, body or a header" in printed.err
    assert 1 == len(printed.err.strip().splitlines())
    assert not printed.out
    assert 2 == command("verify", files["message.json"], *given, "--json")
    assert not json.loads(capsys.readouterr().out)["is_verified"]


def test_verifying_needs_something_that_vouches(files, capsys):
    """A proof alone proves nothing: its certificate could be any program's."""
    assert 4 == command("verify", files["message.json"], "--proof", files["proof.json"])
    assert "give --keys or --published" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("--published", "0" * 64), 2, "differs from the published one"),
        (("--published", "no-such-file"), 4, "neither a head"),
        (("--keys", "no-such-file"), 4, "cannot be read"),
        (("--keys", "proof.json"), 4, "is no TOML"),
    ],
)
def test_each_mistake_is_one_sentence(files, capsys, given, code, said):
    """What differs ends with 2, a mistake with 4."""
    name, value = given
    path = files.get(value, value)
    assert code == command("verify", files["message.json"], "--proof", files["proof.json"], name, path)
    printed = capsys.readouterr().err
    assert said in printed
    assert 1 == len(printed.strip().splitlines())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda proof: proof["certificate"].update(mac="\u00e9" * 64), "was changed"),
        (lambda proof: proof["certificate"]["content"].update(limits=["\ud800"]), "is no proof"),
        (lambda proof: proof["entry"].update(group="\ud800"), "is no proof"),
    ],
)
def test_a_proof_with_any_character_is_refused(files, capsys, change, said):
    """The exit code is 2, and not the one of an exception."""
    proof = json.loads(files["proof.json"].read_bytes())
    change(proof)
    files["proof.json"].write_text(json.dumps(proof), encoding="utf-8")
    given = ("--proof", files["proof.json"], "--keys", files["keys"])
    assert 2 == command("verify", files["message.json"], *given)
    assert said in capsys.readouterr().err


def test_a_proof_that_says_two_things_is_refused(files, capsys):
    """Another program may read the first of two outcomes."""
    text = files["proof.json"].read_text(encoding="utf-8")
    files["proof.json"].write_text(text.replace('"outcome":', '"outcome":"rolled back","outcome":'), encoding="utf-8")
    assert 2 == command("verify", files["message.json"], "--proof", files["proof.json"], "--keys", files["keys"])
    assert "has the name 'outcome' twice" in capsys.readouterr().err


def test_a_head_that_is_no_ascii_text_is_another_one(files, capsys):
    """Neither a damaged file of heads nor a long name ends with an exception's code."""
    given = ("--proof", files["proof.json"], "--published")
    assert 4 == command("verify", files["message.json"], *given, "a" * 5_000)
    files["heads.txt"].write_text("1 2026-01-01T00:00:00Z \u00e9\n", encoding="utf-8")
    assert 2 == command("verify", files["message.json"], *given, files["heads.txt"])
    assert "differs from the published one" in capsys.readouterr().err


def test_an_exception_of_any_kind_is_an_error(files, monkeypatch, capsys):
    """Python's own code for one is 1, which means warnings here."""
    monkeypatch.setattr(certificates, "require_covered", lambda _: 1 / 0)
    assert 4 == command("verify", files["message.json"], "--proof", files["proof.json"], "--keys", files["keys"])
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_head_of_another_run_proves_nothing(files, capsys):
    """The file must have the head of the run whose certificate is in the proof."""
    files["heads.txt"].write_text(f"9 2026-01-01T00:00:00Z {files['head']}\n", encoding="utf-8")
    given = ("--proof", files["proof.json"], "--published", files["heads.txt"])
    assert 2 == command("verify", files["message.json"], *given)
    assert "has no head of run 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is no message"),
        ('{"topic": "t", "body": "", "headers": {}}', "no header txcore-id"),
        ('{"topic": "t", "body": {"base64": "?"}, "headers": {}}', "is no message"),
        ('{"topic": "t", "body": "", "headers": {"txcore-id": "x:0"}}', "no header txcore-id"),
        ('{"topic": "t", "body": "", "body": "", "headers": {}}', "has the name 'body' twice"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_a_file_that_is_no_message_is_an_error(files, capsys, text, said):
    """The exit code is 4: nothing was compared."""
    files["message.json"].write_text(text, encoding="utf-8")
    given = ("--proof", files["proof.json"], "--keys", files["keys"])
    assert 4 == command("verify", files["message.json"], *given)
    assert said in capsys.readouterr().err


def test_a_message_is_verified_without_spark_arrow_and_store(files, runs):
    """`txcore audit verify` imports neither, and the store may be gone."""
    (runs.folder / "audit").rename(runs.folder / "gone")
    program = (
        "import sys; from txcore.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as ended: print(ended.code, sorted({'pyspark', 'pyarrow', 'txcore_spark'} & {*sys.modules}))"
    )
    given = ["audit", "verify", files["message.json"], "--proof", files["proof.json"], "--keys", files["keys"]]
    done = subprocess.run([sys.executable, "-c", program, *map(str, given)], capture_output=True, text=True, check=True)
    assert re.search(r"^0 \[\]$", done.stdout, re.MULTILINE)


def test_a_certificate_is_plain_json(runs, keys):
    """Any program can read it, and compute the head."""
    runs.add(None)
    made = certify(runs.store, keys)
    path = runs.folder / "audit/runs/000001" / NAME
    assert made == msgspec.json.decode(path.read_bytes(), type=Certificate)
    assert {"content", "key", "mac"} == set(json.loads(path.read_bytes()))
    assert KEY not in path.read_text(encoding="utf-8")


def test_a_program_without_txcore_checks_a_proof(runs, keys):
    """The formats of docs/certificate.md, written down again with nothing but hashes and JSON."""
    ids = runs.add(*[None] * 7)
    made = certify(runs.store, keys)

    def plain(value):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    for each in ids:
        proof = json.loads(msgspec.json.encode(prove(runs.store, each)))
        node = sha256(b"\0" + plain(proof["entry"])).digest()
        for side, neighbour in proof["path"]:
            pair = (bytes.fromhex(neighbour), node) if side == "left" else (node, bytes.fromhex(neighbour))
            node = sha256(b"\1" + b"".join(pair)).digest()
        content = proof["certificate"]["content"]
        assert [node.hex()] == [hour["root"] for hour in content["hours"] if hour["begin_ms"] == proof["begin_ms"]]
        digest = sha256(b"".join(map(bytes.fromhex, proof["messages"]))).hexdigest()
        assert digest == proof["entry"]["digest"]
        covered = b"txcore audit certificate\0" + plain(content)
        assert sha256(covered).hexdigest() == made.head
        assert hmac.digest(b"k" * 32, covered, "sha256").hex() == proof["certificate"]["mac"]

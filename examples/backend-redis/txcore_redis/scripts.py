"""The keys on the server, and the scripts that write them. A script runs alone on its server, and checks all first.

A position is an entry's id as one number: the millisecond of its append, and its place in that millisecond.
"""

from __future__ import annotations

import hashlib
from typing import Final

from txcore.records import LogKind, Position
from txcore_redis.options import LEASE_MAX_S

PREFIX: Final = "txcore:"
"""Beginning of all keys but the target topics, which no topic may have."""
LIMITS_KEY: Final = f"{PREFIX}limits"
"""A hash that you may write: the number of entries at which a topic takes no more."""
_PLACE_BITS: Final = 20
_CHECKS: Final = """
local function has_partition(group, partition)
  local count = redis.call('HGET', group, 'partitions')
  return count and tonumber(partition) < tonumber(count)
end
local function unusable_topic(from, may_be_made)
  for index = from, #KEYS do
    local kind = redis.call('TYPE', KEYS[index]).ok
    if kind ~= 'stream' and not (kind == 'none' and may_be_made == '1') then
      return {'topic', KEYS[index], kind}
    end
  end
end
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""


class Script:
    """A script that each connection loads before it is used; *name* is for messages."""

    def __init__(self, text: str) -> None:
        self.text = (_CHECKS + text).encode()
        self._sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()

    def call(self, keys: tuple[str, ...], *arguments: bytes | str | int) -> tuple[bytes | str | int, ...]:
        """Return the command that runs it."""
        return ("EVALSHA", self._sha, len(keys), *keys, *arguments)


APPEND: Final = Script("""
local partition, may_be_made, body = unpack(ARGV)
if not has_partition(KEYS[1], partition) then return {'group'} end
local refused = unusable_topic(3, may_be_made)
if refused then return refused end
return {'stored', redis.call('XADD', KEYS[2], '*', 'body', body)}
""")
"""Keys: group, half log, topics."""

RELEASE: Final = Script("""
local partition, is_fenced, token, kind, end_form, generation, id, op, parked, may_be_made = unpack(ARGV, 1, 10)
local is_end = end_form ~= '0'
if not has_partition(KEYS[1], partition) then return {'group'} end
if op ~= '' and is_fenced == '1' and redis.call('HGET', KEYS[1], 'token:' .. partition) ~= token then
  return {'fenced'}
end
local held = is_end and redis.call('HGET', KEYS[4], id)
if held then
  local held_kind, held_generation = held:match('(%d+):(%d+)')
  local is_open = held_kind == '3' and tonumber(held_generation) < tonumber(generation)
  if held_kind == '10' then is_open = end_form == '2' end
  if not is_open then return {'superseded', held_kind} end
end
local refused = unusable_topic(5, may_be_made)
if refused then return refused end
for index = 5, #KEYS do
  local limit = redis.call('HGET', 'txcore:limits', KEYS[index])
  if limit and redis.call('XLEN', KEYS[index]) >= tonumber(limit) then return {'full', KEYS[index]} end
end
local at = 11
for index = 5, #KEYS do
  local count = tonumber(ARGV[at])
  redis.call('XADD', KEYS[index], '*', unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
if parked ~= '' then redis.call('XADD', KEYS[3], '*', 'body', parked) end
if op == '' then return {'stored'} end
if is_end then redis.call('HSET', KEYS[4], id, kind .. ':' .. generation) end
if kind == '8' then redis.call('HSET', KEYS[1], 'token:' .. partition, token) end
return {'stored', redis.call('XADD', KEYS[2], '*', 'body', op)}
""")
"""Keys: group, op log, parked log, ends, a topic for each target. The target's fields follow their number.

A CLAIM, kind 8, makes its token the newest. An end of form 2 may follow a COMMITTED, kind 10, and takes its place; one
of form 1 may not; 0 is for other ops.
"""

LOOK: Final = Script("""
if not has_partition(KEYS[1], ARGV[1]) then return {'group'} end
if redis.call('EXISTS', KEYS[2]) == 0 then return {'empty'} end
local info, found = redis.call('XINFO', 'STREAM', KEYS[2]), {}
for index = 1, #info, 2 do found[info[index]] = info[index + 1] end
local first = found['first-entry']
local is_cut = found['entries-added'] > found['length']
return {'log', first and first[1] or '', found['last-generated-id'], is_cut and 1 or 0}
""")
"""Keys: group, log. The first and last id, and whether a record is gone, without the bodies of the entries."""

ENSURE: Final = Script("""
redis.call('HSETNX', KEYS[1], 'partitions', ARGV[1])
return redis.call('HGET', KEYS[1], 'partitions')
""")
"""Keys: group."""

LOAD: Final = Script("""
if not has_partition(KEYS[1], ARGV[1]) then return {'group'} end
return {'checkpoint', redis.call('HGET', KEYS[1], 'checkpoint:' .. ARGV[1])}
""")
STORE: Final = Script("""
if not has_partition(KEYS[1], ARGV[1]) then return {'group'} end
redis.call('HSET', KEYS[1], 'checkpoint:' .. ARGV[1], ARGV[2])
return {'checkpoint'}
""")
"""Keys of both: group."""

_VIEW: Final = "return {redis.call('HGET', KEYS[1], 'partitions'), redis.call('ZRANGE', KEYS[2], 0, -1), \
redis.call('HGETALL', KEYS[3]), redis.call('HKEYS', KEYS[4])}"
BEAT: Final = Script(f"""
local now = now_ms()
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], now + {LEASE_MAX_S * 1000 + 1}, '+inf')  -- the clock was set back since
local owners = redis.call('HGETALL', KEYS[3])
for index = 1, #owners, 2 do
  local until_ms = redis.call('HGET', KEYS[4], owners[index])
  if not redis.call('ZSCORE', KEYS[2], owners[index + 1]) or (until_ms and tonumber(until_ms) <= now) then
    redis.call('HDEL', KEYS[3], owners[index])
    redis.call('HDEL', KEYS[4], owners[index])
  end
end
{_VIEW}""")
"""Store a heartbeat, and free the partitions of silent members. Keys of this and the next two: `membership_keys`."""

MOVE: Final = Script(f"""
local moves = cmsgpack.unpack(ARGV[3])
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  for _, partition in ipairs(moves[1]) do redis.call('HSETNX', KEYS[3], partition, ARGV[1]) end
  for _, partition in ipairs(moves[2]) do
    if redis.call('HGET', KEYS[3], partition) == ARGV[1] then
      redis.call('HSETNX', KEYS[4], partition, now_ms() + tonumber(ARGV[2]))
    end
  end
end
{_VIEW}""")
"""Take partitions that are still free, and begin to give up those that are still the member's."""

FREE: Final = Script("""
local owners = redis.call('HGETALL', KEYS[3])
for index = 1, #owners, 2 do
  if owners[index + 1] == ARGV[1] and (ARGV[2] == 'all' or ARGV[2] == owners[index]) then
    redis.call('HDEL', KEYS[3], owners[index])
    redis.call('HDEL', KEYS[4], owners[index])
  end
end
return ARGV[2] == 'all' and redis.call('ZREM', KEYS[2], ARGV[1])
""")
"""Free a partition of the member; or all of them, and the member's place."""

SCRIPTS: Final = (APPEND, RELEASE, LOOK, ENSURE, LOAD, STORE, BEAT, MOVE, FREE)


def group_key(group: str) -> str:
    """Return the key of a group's hash: number of partitions, tokens, checkpoints."""
    return f"{PREFIX}group:{group}"


def log_key(group: str, kind: LogKind, partition: int) -> str:
    """Return the key of a log's stream."""
    return f"{PREFIX}{kind.value}:{partition}:{group}"


def ends_key(group: str) -> str:
    """Return the key of the hash with one end for each transaction of a group."""
    return f"{PREFIX}ends:{group}"


def membership_keys(group: str) -> tuple[str, ...]:
    """Return the keys: group; members by the end of their lease; owners; ends of the leases that are revoked."""
    return (group_key(group), *(f"{PREFIX}{name}:{group}" for name in ("leases", "owners", "revoked")))


def position_of(entry_id: bytes) -> Position:
    """Return an entry's position in its log."""
    wall_ms, _, place = entry_id.partition(b"-")
    return Position((int(wall_ms) << _PLACE_BITS) + int(place))


def id_of(position: int) -> str:
    """Return the id of the entry at *position*."""
    return f"{position >> _PLACE_BITS}-{position & ((1 << _PLACE_BITS) - 1)}"


def appended_ms_of(position: int) -> int:
    """Return the server's time of an append, in milliseconds."""
    return position >> _PLACE_BITS

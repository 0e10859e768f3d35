-- Makes one change of a ledger, whole or not at all. Returns 'done', or what was not as expected.
--
-- KEYS: control record, history, hashes of topics
-- ARGV: old and new version, control, entry, number of entries to keep, seconds to live, what the old control has in
--       it, topics and topic ids (empty where they stay), and for each hash "partition old new" repeated, with - for an
--       old one that is not there
--
-- A script that fails half-way is not rolled back. So all is read before anything is written, and every key and
-- command that could be refused is tried, by what changes no offset, before any offset is changed.

local control, history, ttl, chunk = KEYS[1], KEYS[2], tonumber(ARGV[6]), 2000
local version = redis.call('HGET', control, 'version') or '0'
if version ~= ARGV[1] or (version == '0' and redis.call('EXISTS', control) == 1)
  or (version ~= '0' and not string.find(redis.call('HGET', control, 'control') or '', ARGV[7], 1, true)) then
  return {'version', version}
end
local writes = {}
for i = 3, #KEYS do
  local write = {'HSET', KEYS[i]}
  for partition, old, new in string.gmatch(ARGV[i + 7], '(%d+) (%S+) (%d+)') do
    if (redis.call('HGET', KEYS[i], partition) or '-') ~= old then
      return {'position', KEYS[i], partition}
    end
    if #write > chunk then
      table.insert(writes, write)
      write = {'HSET', KEYS[i]}
    end
    table.insert(write, partition)
    table.insert(write, new)
  end
  if #write > 2 then
    table.insert(writes, write)
  end
end
local function keep()
  for i = 3, #KEYS do
    if ttl > 0 then redis.call('EXPIRE', KEYS[i], ttl) else redis.call('PERSIST', KEYS[i]) end
  end
end
redis.call('LPUSH', history, ARGV[2] .. ' ' .. ARGV[4])
redis.call('LTRIM', history, 0, ARGV[5] - 1)
redis.call('PERSIST', history)
redis.call('PERSIST', control)
keep()
for _, write in ipairs(writes) do
  redis.call(unpack(write))
end
keep()
redis.call('HSET', control, 'version', ARGV[2], 'control', ARGV[3])
if ARGV[8] ~= '' then redis.call('HSET', control, 'topics', ARGV[8]) end
if ARGV[9] ~= '' then redis.call('HSET', control, 'topic_ids', ARGV[9]) end
return 'done'

-- Publish events on the channel `:live`: see `events/lib/emit`.
--
-- How they are published is in the field `live` of `:events:keep`: `sharded` or `plain`, and a secret, with
-- which messages are sealed: see `lib/push`. It is another one each time that publishing begins.
--
-- Needs: nothing
-- Gives: publish_live

-- Publish a text to the readers of a queue. `live`: the field.
local function publish_live(queue_name, live, text)
  local way, with = string.match(live, '^(%l+) (%x+)$')
  if with then
    text = redis.sha1hex(text .. with) .. ' ' .. text
    if way == 'plain' or type(redis.pcall('SPUBLISH', queue_name .. ':live', text)) == 'table' then
      redis.pcall('PUBLISH', queue_name .. ':live', text)
    end
  end
end

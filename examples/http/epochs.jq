# Complete epochs from the events of all segments, each read from the start: one line an epoch, {"time", "records"}.
#
#     jq -n -c -f epochs.jq segment-0.jsonl segment-1.jsonl
#
# Each file is what one segment answered: its opening, then its events (docs/http.md).

# A time is a number, or a list of times; lists are compared in each place.
def less_equal($a; $b):
  if ($a | type) == "array" then all(range($a | length); less_equal($a[.]; $b[.])) else $a <= $b end;
def reached($lower; $time): any($lower[]; less_equal(.; $time));

# What one segment says: where it began, and where its frontier is now.
def segment:
  reduce .[1:][] as $event (
    {first: .[0], lower: (.[0].lower | map({key: tojson, value: {time: ., count: 1}}) | from_entries),
     aborted: .[0].aborted, data: []};
    if $event.kind == "data" then .data += [$event]
    elif $event.kind == "aborted" then .aborted += $event.times
    elif $event.kind == "frontier" then
      reduce $event.changes[] as [$time, $by] (.; .lower[$time | tojson] |= {time: $time, count: ((.count // 0) + $by)})
    else . end
  ) | .lower |= [.[] | select(.count > 0).time];

# Whether all of a time came after the opening.
def sees($time):
  .first | reached(.lower; $time) and (.active + .aborted | index([$time]) == null)
    and (any(.below[]; less_equal($time; .)) | not);

[inputs] | reduce .[] as $line ([]; if $line.kind == "opening" then . + [[$line]] else .[-1] += [$line] end)
| map(segment) as $segments
| [$segments[].data[]] | group_by(.time)[] | . as $batches | $batches[0].time as $time
| select(all($segments[]; reached(.lower; $time) | not))
| select(all($segments[]; sees($time) and (.aborted | index([$time]) == null)))
| {time: $time, records: map(if .records then .records[]
    else error("time \($time | tojson): a batch is given as its payload, which jq cannot decode (docs/http.md)") end)}

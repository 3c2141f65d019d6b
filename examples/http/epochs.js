// Follows a stream over HTTP as docs/http.md explains: gives every epoch that is complete in all segments, once and
// whole, and names those that were aborted. For browsers (EventSource); no other code is needed.
//
//     follow({
//       segments: ["0", "1"],                             // all of the stream: one that is missing would not be missed
//       addresses: async () => ({"0": "http://publisher-0:8704", "1": "http://publisher-1:8704"}),
//       since: "now",                                     // or "start": all that is retained
//       onEpoch: (time, batches) => ...,                  // batches: as they came, with records, topic, key
//       onAborted: time => ..., onComplete: () => ..., onError: problem => ...,
//     })

// A time is a number, or a list of times; lists are compared in each place (a partial order).
const lessEqual = (a, b) => Array.isArray(a) ? a.every((part, place) => lessEqual(part, b[place])) : a <= b
const compare = (a, b) => Array.isArray(a) ? a.map((part, i) => compare(part, b[i])).find(x => x) ?? 0 : a - b
const reached = (lower, time) => lower.some(least => lessEqual(least, time))
const exact = time => Array.isArray(time) ? time.every(exact) : Number.isSafeInteger(time)
const keyOf = JSON.stringify
const PAUSE = 1000 // milliseconds before a publisher is looked for again

class Segment {
  position = null // [incarnation, seq] of the last event that was taken
  first = null // the opening with which following began
  lower = new Map() // the least times that can still come here, each with a count

  take(opening) {
    this.first ??= opening
    this.position = opening.position
    this.lower = new Map(opening.lower.map(time => [keyOf(time), [time, 1]]))
  }

  change(changes) {
    for (const [time, by] of changes) {
      const count = (this.lower.get(keyOf(time))?.[1] ?? 0) + by
      count ? this.lower.set(keyOf(time), [time, count]) : this.lower.delete(keyOf(time))
    }
  }

  get complete() { return this.first !== null && this.lower.size === 0 }

  // Whether something of this time can still come.
  isOpen(time) { return reached([...this.lower.values()].map(([least]) => least), time) }

  // Whether all of this time came after the opening: it had not passed there, had no data yet, and was not aborted.
  sees(time) {
    const has = times => times.some(other => keyOf(other) === keyOf(time))
    const {lower, active, aborted, below} = this.first
    return reached(lower, time) && !has(active) && !has(aborted) && !below.some(lost => lessEqual(time, lost))
  }
}

export function follow({
  segments: ids, addresses, since = "now",
  onEpoch, onAborted = () => {}, onComplete = () => {}, onError = () => {},
}) {
  const segments = new Map(ids.map(id => [id, new Segment()])), sources = new Map(), epochs = new Map()
  let over = false

  function stop() {
    over = true
    for (const source of sources.values()) source.close()
  }

  function fail(problem) {
    if (!over) { stop(); onError(problem) }
  }

  // An aborted epoch is kept without batches until the frontier passes it, because more of it may come.
  function abort(time) {
    if (epochs.get(keyOf(time))?.batches !== null) epochs.set(keyOf(time), {time, batches: null, reported: false})
  }

  // After every change: report what was aborted, and what no segment can add to any more.
  function advance() {
    const all = [...segments.values()]
    if (!all.every(segment => segment.first)) return // only the openings of all segments say what is whole
    if (since === "start" && all.some(segment => !segment.first.lower.length))
      return fail({code: "history_truncated", detail: "the stream is complete, and no epoch of it is left whole"})
    for (const epoch of epochs.values()) {
      if (over || epoch.batches !== null || epoch.reported) continue
      epoch.reported = true
      if (all.every(segment => segment.sees(epoch.time))) onAborted(epoch.time)
    }
    const passed = [...epochs.values()].filter(({time}) => !all.some(segment => segment.isOpen(time)))
    for (const {time, batches} of passed.sort((one, other) => compare(one.time, other.time))) {
      epochs.delete(keyOf(time))
      if (!over && batches && all.every(segment => segment.sees(time))) onEpoch(time, batches)
    }
    if (!over && all.every(segment => segment.complete)) { stop(); onComplete() }
  }

  const handlers = {
    opening(segment, id, opening) {
      // A machine that crashed may have lost the last data: the publisher goes on before it, and epochs with it are torn.
      for (const {time, batches} of epochs.values())
        if (batches?.some(batch => batch.segment === id && batch.position[1] > opening.position[1])) abort(time)
      segment.take(opening)
      for (const time of opening.aborted) abort(time)
      for (const {time} of epochs.values())
        if (opening.below.some(lost => lessEqual(time, lost)) && segment.isOpen(time)) abort(time)
    },
    data(segment, id, data) {
      const epoch = epochs.get(keyOf(data.time)) ?? {time: data.time, batches: []}
      epoch.batches?.push({...data, segment: id})
      epochs.set(keyOf(data.time), epoch)
    },
    frontier(segment, id, {changes}) { segment.change(changes) },
    aborted(segment, id, {times}) { times.forEach(abort) },
    complete() {},
  }

  // JavaScript's numbers are exact up to 2^53 only: beyond that, two times could look like one.
  function timesOf({time, times = [], changes = [], lower = [], active = [], aborted = [], below = []}) {
    return [...(time === undefined ? [] : [time]), ...times, ...changes.map(([each]) => each), ...lower, ...active, ...aborted, ...below]
  }

  // One connection after the other, each after the last event that was taken.
  const again = id => setTimeout(() => connect(id).catch(() => again(id)), PAUSE)
  async function connect(id) {
    if (over) return
    const segment = segments.get(id)
    const address = (await addresses())[id]
    if (over) return
    if (!address) return again(id)
    const events = `${address}/v1/segments/${id}/events?since=${segment.position ? segment.position.join(".") : since}`
    const source = new EventSource(events)
    sources.set(id, source)
    for (const [kind, handle] of Object.entries(handlers))
      source.addEventListener(kind, ({data}) => {
        if (over) return
        const event = JSON.parse(data)
        if (!timesOf(event).every(exact)) return fail({code: "inexact_time", detail: "a time is above 2^53"})
        handle(segment, id, event)
        if (kind !== "opening") segment.position = event.position
        if (kind === "complete") source.close()
        advance()
      })
    source.addEventListener("refused", ({data}) => fail(JSON.parse(data)))
    source.onerror = async () => {
      source.close() // the browser would go on with this address, and the publisher may have another one by now
      if (over || segment.complete) return
      // Why something was refused is not shown to an EventSource; the same question in another form is answered with it.
      const at = segment.position ? segment.position.join(".") : since
      const why = await fetch(`${address}/v1/segments/${id}/events?since=${at}&limit=1`).catch(() => null)
      const problem = why && why.status >= 400 && why.status < 500 ? await why.json().catch(() => null) : null
      if (problem && why.status !== 404) fail(problem)
      else again(id) // also where another publisher, which does not have this segment, is at the address by now
    }
  }

  for (const id of segments.keys()) connect(id).catch(() => again(id))
  return stop
}

// What can be tuned, in the order in which it is shown, and what moving each figure trades.

const switches = (key, label, trade) => ({ kind: "switch", key, label, trade });
const number = (key, label, unit, trade) => ({ kind: "number", key, label, unit, trade });
const choice = (key, label, options, trade) => ({ kind: "choice", key, label, options, trade });

/** The groups of a profile. `table` is where their keys stand; `arms` the switch that fills knobs in. */
export const PROFILE = [
  {
    title: "Frequency rule and length backstop",
    table: ["loop_detection"],
    arms: "enabled",
    note: "A reply loops when several words have each filled too much of a window for a long, unbroken stretch. It reads the answer alone.",
    fields: [
      number("window_words", "Window", "words", "Wider lets longer phrases repeat in it, and dilutes a short region; nothing trips before so many words have come."),
      number("repeat_threshold", "Repeat threshold", "times in it", "Lower takes the common words of plain text for offenders; higher misses loops of longer phrases."),
      number("min_offenders", "Offenders", "words", "1 lets a single brace or zero be a loop; more delays the cut of short phrases."),
      number("min_saturated_run", "Saturated run", "words", "Lower cuts earlier and deletes long data literals, such as a tile map; 0 trips on any of them."),
      number("max_response_chars", "Length backstop", "characters", "Lower ends novel garbage sooner, and long replies that are sound; 0 turns it off."),
    ],
  },
  {
    title: "Stretch rule",
    table: ["stretch_detection"],
    arms: "enabled",
    note: "A reply loops when it has said nothing new for a long stretch, whatever it repeats. It reads every channel that is watched.",
    fields: [
      number("min_stale_chars", "Floor", "characters", "Lower cuts loops earlier, and kills requested repetition and runs that a model leaves by itself."),
      number("novelty_cost_chars", "Cost of novelty", "characters", "Lower follows loops that drift, and takes rows of one shape for a loop."),
      number("structure_weight", "Weight of structure", "0 to 1", "Higher cuts loops in code and markup earlier, and kills generated code."),
      number("data_weight", "Weight of data", "0 to 1", "Higher cuts floods of digits earlier, and kills grids and tables of numbers."),
    ],
  },
  {
    title: "Identical calls",
    table: [],
    fields: [
      number("max_identical_calls", "Identical calls in a row", "calls", "Fewer cuts loops of tool calls earlier; nobody gains from asking a tool the same thing twice in one reply. 0 allows any number."),
    ],
  },
  {
    title: "What is watched, and what raises the floors",
    table: [],
    fields: [
      {
        kind: "set",
        key: "channels",
        label: "Channels",
        options: ["content", "reasoning", "arguments"],
        trade: "A channel that is left out costs nothing to watch, and a loop in it runs to the provider's cap.",
      },
      switches("request_gate", "Request gate", "On, repetition that a request asks for raises the floors; off, it is cut like any other, and so is a loop that was asked for."),
    ],
  },
  {
    title: "Relay",
    table: [],
    fields: [
      choice("relay", "Relay", ["hold", "live"], "hold makes every retry invisible and delays the first character; live shows a reply as it comes, and a loop found late ends it with an error."),
      choice("live_trip", "A live loop ends with", ["error", "finish"], "error fails the caller; finish reads like a reply that met its length, and the loop's beginning is kept."),
      number("stream_idle_s", "Silence until stalled", "seconds", "Shorter asks again sooner, and cuts models that think in silence."),
      number("call_timeout_s", "One attempt may take", "seconds", "Shorter bounds the wait, and gives long replies up."),
      switches("log_sample", "Samples", "On, up to 200 characters of what repeated are logged, kept in the ledger and shown here: text of the reply."),
    ],
  },
  {
    title: "Escape",
    table: ["escape"],
    note: "What each trip changes of the next attempt. Without steps the same request goes out again.",
    fields: [
      {
        kind: "list",
        key: "steps",
        label: "Steps, in order, between commas",
        trade: "Each makes the next attempt likelier to leave the loop, and less what the caller asked for: ignore_provider, raise_temperature, drop_seed, repetition_penalty, fallback_model.",
      },
      number("temperature", "Temperature", "0 to 2", "Higher leaves a loop more surely, and writes more loosely."),
      number("repetition_penalty", "Repetition penalty", "up to 2", "Higher avoids repetition, where it is meant as well; some providers ignore it."),
      { kind: "text", key: "fallback_model", label: "Fallback model", trade: "Another model answers in its own way, at its own price." },
    ],
  },
  {
    title: "Retry after a trip",
    table: [],
    fields: [
      switches("stop_on_identical", "Stop on identical attempts", "On, an endpoint that loops the same way twice is not paid a third time; off, the whole budget is spent."),
    ],
  },
];

/** Of every profile alike. */
export const RETRY = {
  title: "Retry, for all profiles",
  table: ["retry"],
  fields: [
    number("max_attempts", "Attempts", "requests", "More answers more callers, and each is paid for."),
    number("initial_wait_s", "First wait, at most", "seconds", "Longer spares an upstream that is overloaded, and keeps the caller waiting; doubled each time."),
    number("max_wait_s", "Longest wait", "seconds", "Longer honours what an upstream asks for, and keeps the caller waiting."),
    number("exchange_timeout_s", "Everything together", "seconds", "Shorter tells the caller sooner that there is no reply."),
  ],
};

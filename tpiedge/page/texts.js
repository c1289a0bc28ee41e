// Every English text of the page, by view. What takes a value is a function.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const dates = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const seconds = (s) => (s < 10 ? `${s.toFixed(1)} s` : `${whole.format(s)} s`);
const UNITS = ["B", "kB", "MB", "GB", "TB"];
const bytes = (count) => {
  const unit = Math.min(UNITS.length - 1, count < 1 ? 0 : Math.floor(Math.log10(count) / 3));
  const value = count / 1000 ** unit;
  return `${value >= 100 || unit === 0 ? whole.format(value) : value.toFixed(1)} ${UNITS[unit]}`;
};
const brief = (s) => (s < 1 ? `${(1000 * s).toFixed(s < 0.01 ? 2 : 0)} ms` : seconds(s));
const timeLeft = (s) => (s === null ? "" : `, ${whole.format(s)} s left`);
const when = (at_s) => {
  const at = new Date(at_s * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${dates.format(at)}, ${time}`;
};
const longer = (ratio) => {
  if (ratio >= 2) return `${ratio.toFixed(1)} times as long`;
  const percent = Math.round(100 * (ratio - 1));
  return percent === 0 ? "as long as now" : `${Math.abs(percent)} % ${percent > 0 ? "longer" : "shorter"}`;
};
// The planner knows no more than its model of the machines: what it predicts counts beside what it predicts of the plan
// of now, and is scaled by what is measured of that.
const predicted = ({ now_s, then_s }, measured_s) => {
  if (!now_s) return `about ${brief(then_s)}, as predicted`;
  const ratio = then_s / now_s;
  const said = `about ${longer(ratio)}, as predicted`;
  if (measured_s <= 0) return said;
  return `${said}: about ${brief(ratio * measured_s)}, where ${brief(measured_s)} are measured now`;
};
const eventWords = {
  joined: (machine) => `${machine} joined`,
  left: (machine) => `${machine} left`,
  lost: (machine) => `${machine} was lost`,
  drained: (machine) => `${machine} was drained`,
  undrained: (machine) => `${machine} may have a part again`,
  cleared: (machine) => `${machine} is tried again`,
  revoked: (machine) => `${machine} was shut out`,
  planned: () => "a new plan begins",
  serving: () => "the plan serves",
  recovered: () => "answers go on",
  interrupted: () => "answers pause",
  "plan failed": () => "the new plan failed",
  "no plan": () => "no plan",
};
const tokens = (count) => `${whole.format(count)} ${count === 1 ? "token" : "tokens"}`;

export const texts = {
  shell: {
    name: "tpiedge",
    views: "Views",
    skip: "Skip to the content",
  },
  keys: {
    api: "API key",
    apiWhy: "This server answers only with an API key: whoever runs it has one. This tab keeps it until it is closed.",
    admin: "Administrator's key",
    adminWhy: "On the master's computer “tpiedge nodes key” prints it. This tab keeps it until it is closed.",
    refused: "The server does not know this key.",
    apiRenewed: "The server takes the key of before no more.",
    adminRenewed: "The master was started again: it has a new key.",
    use: "Use this key",
    cancel: "Cancel",
  },
  errors: {
    unreachable: "The server cannot be reached.",
    unreachableNow: "The server cannot be reached; it is tried again and again.",
    noJson: (status) => `The server answered with status ${status}.`,
    noEvent: "The server sent what is no part of an answer.",
    keyMissing: {
      api: "Without the API key there is no answer: whoever runs this server has one.",
      admin: "Without the administrator's key there is no answer.",
    },
    broken: "The connection broke before the answer's end.",
    gone: "The server has the rest of this answer no longer.",
  },
  chat: {
    title: "Chat",
    conversations: "Conversations",
    conversation: "Conversation",
    open: "Show the conversations",
    close: "Hide the conversations",
    add: "New chat",
    none: "No conversations yet. They stay in this browser.",
    find: "Find a conversation",
    notFound: "No conversation has that.",
    rename: (title) => `Rename “${title}”`,
    newName: "New name",
    remove: (title) => `Delete “${title}”`,
    removeAsk: "Delete this conversation?",
    removeWhy: (title) => `“${title}” is in this browser only, and will be gone.`,
    removeDo: "Delete",
    cancel: "Cancel",
    notKept: "This browser keeps no more conversations: delete some, or allow this page to store data.",
    keepsNothing: "This browser lets the page keep nothing: what is said here is gone when the tab is closed.",

    welcome: "What would you like to know?",
    welcomeWhy: (model) => (model ? `${model} answers, on your own machines.` : "Your own machines answer."),
    message: "Message",
    hint: "Message …",
    send: "Send",
    stop: "Stop",
    toEnd: "To the end",

    you: "You",
    copy: "Copy",
    copyCode: "Copy",
    copied: "Copied",
    notCopied: "Not copied",
    edit: "Edit",
    editing: "Edit the message",
    again: "Try again",
    typeKey: "Type the key",
    regenerate: "Another answer",
    previous: "Earlier version",
    next: "Later version",
    version: (number, count) => `${number} of ${count}`,
    code: "Code",
    table: "Table",
    thought: "Thoughts",
    thinking: "Thinking …",

    isAnswering: "An answer is being made",
    unready: (why) => `The cluster cannot answer now: ${why}. What is asked meanwhile waits, or is refused.`,
    sent: "Waiting for the server …",
    opened: (s) => (s < 1 ? "Reading the prompt …" : `Reading the prompt … ${whole.format(s)} s`),
    reading: ({ done, of, left_s }) =>
      `Reading the prompt … ${whole.format(done)} of ${tokens(of)}${timeLeft(left_s)}`,
    pauses: (why) => `The answer pauses: ${why}`,
    reconnecting: "the connection broke; trying again",
    reaching: "the server cannot be reached; trying again",
    live: (count, rate) => (rate ? `${tokens(count)} · ${rate.toFixed(1)} tokens/s` : tokens(count)),
    answered: (text) => `Answer: ${text}`,
    stopped: "Stopped.",
    interrupted: "Interrupted when the page was closed.",
    elsewhere: "Another tab reads this answer, or was closed before its end.",
    unread: (why) => `The rest of this answer is still to come: ${why}`,
    goOn: "Go on",
    failed: (why) => `No answer: ${why}`,
    brokeOff: (why) => `The answer broke off: ${why}`,
    tooLong: (fit) =>
      `${fit ? `${tokens(fit)} fit` : "Not all fits"}, what was said before and the answer included: ` +
      "make the message shorter, or begin a new chat.",
    cut: "Cut at the most tokens an answer may have.",

    count: tokens,
    rate: (rate) => `${rate.toFixed(1)} tokens/s`,
    perStep: (count) => `${exact.format(count)} ${count === 1 ? "token" : "tokens"} per step`,
    first: (s) => `first token after ${seconds(s)}`,
    prompt: (count, cached) => `prompt ${tokens(count)}${cached ? `, ${whole.format(cached)} of them cached` : ""}`,
    paused: (s) => `paused for ${seconds(s)}`,

    settings: "Settings",
    settingsOwn: "They are others than a new chat begins with.",
    settingsWhy: "For this conversation alone, from the next answer on. An empty field leaves it to the model.",
    makeUsual: "New chats begin with these settings, too",
    system: "What the model is told first",
    unset: { temperature: "the model's own", top_p: "the model's own", max_tokens: "2048", seed: "another every time" },
    temperature: "Temperature",
    temperatureWhy: "0 is the likeliest answer; above 1 it gets wild.",
    top_p: "Top p",
    top_pWhy: "Only the likeliest words, up to this part of all: 0 to 1.",
    max_tokens: "Most tokens of an answer",
    max_tokensWhy: "As far as they fit beside the conversation.",
    seed: "Seed",
    seedWhy: "A whole number: the same one gives the same answer.",
    done: "Done",
  },
  cluster: {
    title: "Cluster",
    locked: "What the machines do is for who looks after them: it needs the administrator's key.",
    lockedHow: "On the master's computer this prints it:",
    lockedType: "tpiedge nodes key",
    unlock: "Type the key",
    looking: "Looking at the cluster …",
    unseen: (at_s, why) => `This is what was seen last, at ${when(at_s)}. ${why}`,
    again: "Try again",
    keyWanted: "The server wants another key.",
    unreachable: "unreachable",
    notSeen: "not seen now",
    dismiss: "Close",

    ready: "ready",
    notReady: "not ready",
    collective: ({ token, chunk }) =>
      `Machines add up their parts by ${token}${chunk && chunk !== token ? `, those of prompts by ${chunk}` : ""}.`,
    rate: "Tokens per second",
    running: "Running",
    queued: "Waiting",
    guesses: "Guesses right",
    kv: "KV cache in use",
    perSecond: (rate) => (rate === null ? "–" : rate.toFixed(1)),
    percent: (part) => `${whole.format(100 * part)} %`,
    partOf: (part, all) => (all > 0 ? `${whole.format((100 * part) / all)} %` : "–"),
    whole: (count) => whole.format(count),
    unknown: "–",

    machines: "Machines",
    rank: (rank) => `rank ${rank}`,
    states: {
      serving: "serves",
      loading: "gets ready",
      spare: "spare",
      "left out": "left out",
      draining: "drains",
      drained: "drained",
      waiting: "waits",
      lost: "away",
    },
    drained: "It may be switched off. “Use again” gives it a part again, as does a new start of its worker.",
    silent: (s) => `Not heard for ${whole.format(s)} s.`,
    fetching: ({ done_bytes, total_bytes, bytes_per_s }) =>
      `Fetches weights: ${bytes(done_bytes)} of ${bytes(total_bytes)}, ${bytes(bytes_per_s)}/s`,
    share: { heads: "of the heads", ffn: "of the FFN" },
    bytes,
    seconds: brief,
    memoryOf: (planned, budget) => `Memory: ${bytes(planned)} of ${bytes(budget)}`,
    memoryPlanned: (planned) => `Memory: ${bytes(planned)}`,
    memory: {
      pinned: "weights",
      window: "window for streamed weights",
      kv: "KV cache",
      kv_room: "room for it",
      program: "program",
      free: "free",
    },
    stepNone: "No step is computed now.",
    stepOf: (s) => `Time of a step: ${brief(s)}`,
    step: { compute: "computes", wait: "waits for others", network: "network", disk: "disk" },
    timeline: "One step on all machines",
    timelineOf: ({ step, at, took_s, tokens: count }) =>
      `Step ${whole.format(step)}, ${tokens(count)}, at ${when(at)}: ${brief(took_s)}`,
    ms: (ms) => `${exact.format(ms)} ms`,
    machine: "Machine",
    link: "Link to the master",
    linkOf: ({ round_trip_s, bytes_per_s }) => `${brief(round_trip_s)}, ${bytes(bytes_per_s)}/s`,
    links: "Links to other workers",
    linksOf: (links) =>
      links.map(({ name, host, round_trip_s }) => `${host || name} ${brief(round_trip_s)}`).join(", "),
    disk: "On its disk",
    diskOf: ({ held_bytes, spare_ranges, read_bytes_per_s }) =>
      bytes(held_bytes) +
      (spare_ranges === "complete" ? ", ready for a loss" : "") +
      (read_bytes_per_s ? `; reads ${bytes(read_bytes_per_s)}/s` : ""),
    notStocked: (why) => `It lacks what it would need after another's loss: ${why}`,
    speed: "Speed",
    speedOf: ({ speed_bytes_per_s, threads }) =>
      `${bytes(speed_bytes_per_s)}/s of weights, ${threads} ${threads === 1 ? "thread" : "threads"}`,
    drain: "Drain",
    undrain: "Use again",
    clear: "Try again now",
    whatIfLess: "Without it?",
    whatIfMore: "What if one more like the last one came?",
    less: (name, forecast, measured_s) => {
      const { then_s, takes_part, why } = forecast;
      if (then_s === null) return `Without ${name} nothing could be served: ${why}`;
      if (!takes_part) return `The best plan for these machines has no part for ${name} anyway.`;
      return `Without ${name} a step would take ${predicted(forecast, measured_s)}.`;
    },
    more: (forecast, measured_s) => {
      const { then_s, takes_part, why } = forecast;
      if (then_s === null) return `Nothing could be served still: ${why}`;
      if (!takes_part) return "It would be a spare: answers would not be faster with it.";
      return `With it a step would take ${predicted(forecast, measured_s)}.`;
    },
    revoke: "Shut out",
    wordsTitle: "What these words mean",
    wordsOf: [
      ["step", "One pass through the model on all machines. It makes one token of every answer that runs, or more."],
      ["rank", "The place of a machine in the plan. Rank 0 is the master: it says what each step computes."],
      ["heads", "They look back at the text, in the first half of each layer. Each machine has some of them."],
      ["FFN", "The feed-forward network, a layer's second half and most of its weights; each machine has a slice."],
      ["KV cache", "What the heads remember of the texts that are answered now, so that nothing is read twice."],
      ["adding up", "Twice a layer the machines add up what each has computed. By star, all of it goes to the master " +
        "and back; by mesh, from each to each; by two-shot, each adds up one slice and gives that to all."],
      ["guesses right", "Tokens were guessed ahead and checked together. Each right one saves a step."],
      ["GB/s of weights", "How fast a machine reads its part of the model while it computes: the more, the faster."],
    ],

    waiting: (count) => (count === 1 ? "A machine waits to join" : `${count} machines wait to join`),
    from: (address) => `at ${address}`,
    code: "The code on its screen",
    codeHint: "XXXX-XXXX",
    codeWhy: "Type what the machine itself shows: only that proves which one you let in.",
    approve: "Let it in",

    requests: "Requests",
    noRequests: "No request runs or waits.",
    columns: ["Request", "From", "State", "Age", "Prompt", "Answer", "Tokens/s"],
    actions: "Actions",
    sender: (sender) => {
      if (sender === null) return "–";
      if (sender.kind === "former key") return "a key that is gone";
      return sender.name || "a key without a name";
    },
    senderOf: (sender) => `from ${sender}`,
    requestStates: { queued: "waits", reading: "reads the prompt", answering: "answers", paused: "pauses" },
    pauses: ({ why, paused_s }) => `for ${whole.format(paused_s)} s: ${why}`,
    age: (s) => (s < 60 ? `${s} s` : `${Math.floor(s / 60)} min ${s % 60} s`),
    readOf: ({ done_tokens, of_tokens, left_s }) =>
      `${whole.format(done_tokens)} of ${whole.format(of_tokens)}${timeLeft(left_s)}`,
    tokensOf: ({ tokens: count, max_tokens }) => `${whole.format(count)} of ${whole.format(max_tokens)}`,
    cancelDo: "End",
    cancelOf: (id) => `End ${id}`,

    events: "Events",
    noEvents: "Nothing has happened yet.",
    when,
    event: ({ kind, machine, detail }) => {
      const said = eventWords[kind]?.(machine) ?? `${machine} ${kind}`.trim();
      return detail ? `${said}: ${detail}` : said;
    },

    keep: "Cancel",
    ask: {
      drain: (name) => ({
        title: `Drain ${name}?`,
        why: "The others take over its part, and answers pause for the change. Then it may be switched off.",
        go: "Drain",
      }),
      revoke: (name) => ({
        title: `Shut ${name} out?`,
        why: "It is out at once and for good: to come back it needs a new token or a new code.",
        go: "Shut out",
      }),
      cancel: (id) => ({
        title: "End this request?",
        why: `Whoever waits for ${id} is told that the administrator ended it.`,
        go: "End it",
      }),
    },
  },
};

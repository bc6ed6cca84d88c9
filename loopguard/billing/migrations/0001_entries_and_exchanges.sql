-- An entry per abandoned generation, and a row per exchange.
-- Every statement is one that SQLite and PostgreSQL both take.
-- Money is whole picodollars (1e-12 USD), times are whole UNIX seconds.

-- The columns that a summary reads come first: SQLite decodes a row from its start.
CREATE TABLE entries (
    exchange TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    model TEXT NOT NULL,
    profile TEXT NOT NULL,
    run TEXT,
    at_s BIGINT NOT NULL,
    words BIGINT NOT NULL,
    chars BIGINT NOT NULL,
    cost_usd BIGINT,
    prompt_tokens BIGINT,
    completion_tokens BIGINT,
    cancelled BOOLEAN,
    generation TEXT,
    rule TEXT,
    provider TEXT,
    fingerprint TEXT,
    unpriced_reason TEXT,
    looks INTEGER NOT NULL,
    look_at_s DOUBLE PRECISION NOT NULL,
    leased_until_s DOUBLE PRECISION NOT NULL,
    seen_unfinished BOOLEAN NOT NULL,
    PRIMARY KEY (exchange, attempt)
);

-- What is due: few rows in a large ledger, found by the keys at hand.
CREATE INDEX entries_owed ON entries (fingerprint, look_at_s) WHERE state = 'owed';

CREATE INDEX entries_run ON entries (run);

-- Retention.
CREATE INDEX entries_at ON entries (at_s);

-- Which models loop, and what it costs: all that the summary needs, in the order of its lines.
CREATE INDEX entries_model ON entries (model, profile, at_s, state, reason, words, chars, cost_usd);

-- Lists, how many there are, and the oldest that is owed.
CREATE INDEX entries_state ON entries (state, at_s);

CREATE TABLE exchanges (
    exchange TEXT NOT NULL PRIMARY KEY,
    outcome TEXT NOT NULL,
    model TEXT NOT NULL,
    profile TEXT NOT NULL,
    run TEXT,
    at_s BIGINT NOT NULL,
    cost_usd BIGINT,
    attempts INTEGER NOT NULL,
    loop_aborts INTEGER NOT NULL,
    loop_abort_words BIGINT NOT NULL,
    loop_abort_chars BIGINT NOT NULL,
    prompt_tokens BIGINT,
    completion_tokens BIGINT
);

CREATE INDEX exchanges_run ON exchanges (run);

CREATE INDEX exchanges_at ON exchanges (at_s);

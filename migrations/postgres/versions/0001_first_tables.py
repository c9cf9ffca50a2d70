"""First tables: tenants with row-level security, the outbox and its triggers, what the application may do.

Written as SQL because most of it is what an ORM cannot say. `control_plane.tables` describes the same tables; a test
compares. There is no way down: an older release is reached by restoring a backup.
"""

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE workspaces (
  workspace text CONSTRAINT workspaces_pkey PRIMARY KEY,
  name text NOT NULL,
  default_accounts jsonb NOT NULL DEFAULT '{}',
  span_sampling double precision NOT NULL DEFAULT 1
    CONSTRAINT workspaces_span_sampling_check CHECK (span_sampling >= 0 AND span_sampling <= 1),
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL
);

CREATE TABLE workspace_keys (
  workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  name text NOT NULL,
  version integer NOT NULL,
  secret bytea NOT NULL,
  sealed bytea NOT NULL,
  sealed_for text NOT NULL,
  public text,
  PRIMARY KEY (workspace, name)
);

CREATE TABLE audit (
  workspace text NOT NULL,
  seq bigint NOT NULL,
  at timestamptz NOT NULL,
  actor text NOT NULL,
  actor_name text NOT NULL,
  action text NOT NULL,
  kind text NOT NULL,
  target text NOT NULL,
  target_name text NOT NULL,
  before jsonb,
  after jsonb,
  request_id text NOT NULL,
  previous_hash bytea NOT NULL,
  hash bytea NOT NULL,
  PRIMARY KEY (workspace, seq)
);

CREATE TABLE audit_heads (
  workspace text PRIMARY KEY REFERENCES workspaces ON DELETE CASCADE,
  seq bigint NOT NULL,
  hash bytea NOT NULL
);

CREATE TABLE idempotency_keys (
  workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  principal text NOT NULL,
  key text NOT NULL,
  request_digest bytea NOT NULL,
  status integer NOT NULL,
  answer bytea NOT NULL,
  etag text,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, principal, key)
);

CREATE TABLE issuers (
  workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  id text NOT NULL,
  name text NOT NULL,
  issuer text NOT NULL,
  audiences text[] NOT NULL,
  jwks_uri text,
  jwks bytea,
  algorithms text[] NOT NULL,
  subject_claim text NOT NULL,
  email_claim text,
  groups_claim text,
  group_teams jsonb NOT NULL,
  admits_unregistered boolean NOT NULL,
  expiry text NOT NULL,
  leeway_seconds integer NOT NULL,
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, id),
  UNIQUE (workspace, name)
);

CREATE TABLE issuer_audiences (
  workspace text NOT NULL,
  issuer_id text NOT NULL,
  audience text NOT NULL,
  issuer text NOT NULL,
  PRIMARY KEY (workspace, issuer_id, audience),
  FOREIGN KEY (workspace, issuer_id) REFERENCES issuers ON DELETE CASCADE,
  UNIQUE (issuer, audience)
);

CREATE TABLE teams (
  workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  id text NOT NULL,
  name text NOT NULL,
  default_accounts jsonb NOT NULL DEFAULT '{}',
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, id),
  UNIQUE (workspace, name)
);

CREATE TABLE principals (
  workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  id text NOT NULL,
  kind text NOT NULL CONSTRAINT principals_kind_check CHECK (kind IN ('user', 'service_account')),
  name text NOT NULL,
  email text,
  role text NOT NULL DEFAULT 'member' CONSTRAINT principals_role_check CHECK (role IN ('owner', 'admin', 'member')),
  issuer_id text,
  subject text,
  is_disabled boolean NOT NULL DEFAULT false,
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, id),
  FOREIGN KEY (workspace, issuer_id) REFERENCES issuers,
  UNIQUE (workspace, name),
  UNIQUE (workspace, issuer_id, subject),
  CONSTRAINT principals_identity_check CHECK ((issuer_id IS NULL) = (subject IS NULL))
);

CREATE TABLE memberships (
  workspace text NOT NULL,
  principal_id text NOT NULL,
  team_id text NOT NULL,
  position integer NOT NULL,
  PRIMARY KEY (workspace, principal_id, team_id),
  FOREIGN KEY (workspace, principal_id) REFERENCES principals ON DELETE CASCADE,
  FOREIGN KEY (workspace, team_id) REFERENCES teams ON DELETE CASCADE
);
CREATE INDEX memberships_team_idx ON memberships (workspace, team_id);

CREATE TABLE accounts (
  workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  id text NOT NULL,
  name text NOT NULL,
  provider text NOT NULL,
  origin text NOT NULL,
  credential_scheme text NOT NULL,
  credential_version integer NOT NULL DEFAULT 0,
  priority integer NOT NULL,
  ca_pem bytea,
  tls_server_name text,
  allowed_voices text[],
  forwards_trace_headers boolean NOT NULL,
  region text NOT NULL,
  plan text NOT NULL,
  is_disabled boolean NOT NULL,
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, id),
  UNIQUE (workspace, name)
);

CREATE TABLE credentials (
  workspace text NOT NULL,
  account_id text NOT NULL,
  slot text NOT NULL CONSTRAINT credentials_slot_check CHECK (slot IN ('active', 'retiring')),
  version integer NOT NULL,
  secret bytea NOT NULL,
  sealed bytea NOT NULL,
  sealed_for text NOT NULL,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, account_id, slot),
  FOREIGN KEY (workspace, account_id) REFERENCES accounts ON DELETE CASCADE
);

CREATE TABLE models (
  workspace text NOT NULL,
  id text NOT NULL,
  account_id text NOT NULL,
  name text NOT NULL,
  type text NOT NULL CONSTRAINT models_type_check CHECK (type IN ('text-to-speech', 'speech-to-text')),
  priority integer,
  is_narrowed boolean NOT NULL DEFAULT false,
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, id),
  FOREIGN KEY (workspace, account_id) REFERENCES accounts ON DELETE CASCADE,
  UNIQUE (workspace, account_id, name)
);

CREATE TABLE model_subjects (
  workspace text NOT NULL,
  model_id text NOT NULL,
  subject text NOT NULL,
  principal_id text,
  team_id text,
  PRIMARY KEY (workspace, model_id, subject),
  FOREIGN KEY (workspace, model_id) REFERENCES models ON DELETE CASCADE,
  FOREIGN KEY (workspace, principal_id) REFERENCES principals ON DELETE CASCADE,
  FOREIGN KEY (workspace, team_id) REFERENCES teams ON DELETE CASCADE,
  CONSTRAINT model_subjects_subject_check CHECK ((principal_id IS NULL) <> (team_id IS NULL))
);
CREATE INDEX model_subjects_principal_idx ON model_subjects (workspace, principal_id);
CREATE INDEX model_subjects_team_idx ON model_subjects (workspace, team_id);

CREATE TABLE grants (
  workspace text NOT NULL,
  id text NOT NULL,
  account_id text NOT NULL,
  subject text NOT NULL,
  principal_id text,
  team_id text,
  role text NOT NULL CONSTRAINT grants_role_check CHECK (role IN ('manager', 'user')),
  operations text[] NOT NULL,
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, id),
  FOREIGN KEY (workspace, account_id) REFERENCES accounts ON DELETE CASCADE,
  FOREIGN KEY (workspace, principal_id) REFERENCES principals ON DELETE CASCADE,
  FOREIGN KEY (workspace, team_id) REFERENCES teams ON DELETE CASCADE,
  UNIQUE (workspace, account_id, subject),
  CONSTRAINT grants_subject_check CHECK ((principal_id IS NULL) <> (team_id IS NULL))
);
CREATE INDEX grants_principal_idx ON grants (workspace, principal_id);
CREATE INDEX grants_team_idx ON grants (workspace, team_id);

CREATE TABLE prices (
  workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  id text NOT NULL,
  provider text NOT NULL,
  account_id text,
  model text NOT NULL,
  unit text NOT NULL,
  price numeric NOT NULL,
  currency text NOT NULL,
  effective_ms bigint NOT NULL,
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (workspace, id),
  FOREIGN KEY (workspace, account_id) REFERENCES accounts ON DELETE CASCADE,
  CONSTRAINT prices_one_at_a_time_key
    UNIQUE NULLS NOT DISTINCT (workspace, provider, account_id, model, unit, effective_ms)
);

CREATE TABLE tokens (
  workspace text NOT NULL,
  id text NOT NULL,
  principal_id text NOT NULL,
  digest bytea NOT NULL,
  kind text NOT NULL,
  audience text NOT NULL,
  name text NOT NULL,
  team_id text,
  account_ids text[],
  models text[],
  operations text[],
  origins text[],
  scopes text[],
  is_single_use boolean NOT NULL,
  replaces text,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  revoke_at timestamptz,
  revoked_at timestamptz,
  PRIMARY KEY (workspace, id),
  FOREIGN KEY (workspace, principal_id) REFERENCES principals ON DELETE CASCADE,
  FOREIGN KEY (workspace, team_id) REFERENCES teams ON DELETE CASCADE
);
CREATE INDEX tokens_principal_idx ON tokens (workspace, principal_id);
CREATE INDEX tokens_revoke_at_idx ON tokens (revoke_at) WHERE revoke_at IS NOT NULL;

CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workspace text NOT NULL,
  kind text NOT NULL,
  ids text[] NOT NULL,
  payload bytea,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE publication (
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
  revision bigint NOT NULL,
  published_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO publication (revision) VALUES (0);

CREATE TABLE signing_keys (
  id text PRIMARY KEY,
  algorithm text NOT NULL,
  private bytea NOT NULL,
  public text NOT NULL,
  created_at timestamptz NOT NULL,
  retired_at timestamptz
);

CREATE TABLE owner_secrets (
  digest bytea PRIMARY KEY,
  used_at timestamptz NOT NULL
);
"""

TENANT_TABLES = (
    "workspaces",
    "workspace_keys",
    "audit",
    "audit_heads",
    "idempotency_keys",
    "issuers",
    "issuer_audiences",
    "teams",
    "principals",
    "memberships",
    "accounts",
    "credentials",
    "models",
    "model_subjects",
    "grants",
    "prices",
    "tokens",
    "outbox",
)

FUNCTIONS = """
CREATE FUNCTION glottis_workspace() RETURNS text LANGUAGE sql STABLE
  AS $$ SELECT nullif(current_setting('glottis.workspace', true), '') $$;

CREATE FUNCTION glottis_is_publisher() RETURNS boolean LANGUAGE sql STABLE
  AS $$ SELECT coalesce(current_setting('glottis.reader', true), '') = 'publisher' $$;

-- Writes the outbox row of every statement that changes a published record, cascades included, in its transaction.
CREATE FUNCTION glottis_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format(
    'INSERT INTO public.outbox (workspace, kind, ids) '
    'SELECT workspace, %L, array_agg(DISTINCT %I) FROM changed GROUP BY workspace',
    TG_ARGV[0], TG_ARGV[1]);
  PERFORM pg_notify('glottis_outbox', '');
  RETURN NULL;
END $$;

CREATE FUNCTION glottis_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
  FOR EACH STATEMENT EXECUTE FUNCTION glottis_refuse_change();
"""

PUBLISHED = (
    # table, the kind of record that a change of it concerns (contracts.snapshot.KINDS, or prices), the record's id
    ("workspaces", "workspaces", "workspace"),
    ("workspace_keys", "workspaces", "workspace"),
    ("issuers", "issuers", "id"),
    ("teams", "teams", "id"),
    ("principals", "principals", "id"),
    ("memberships", "principals", "principal_id"),
    ("accounts", "accounts", "id"),
    ("credentials", "accounts", "account_id"),
    ("models", "models", "id"),
    ("model_subjects", "models", "model_id"),
    ("grants", "grants", "id"),
    ("prices", "prices", "id"),
)


def upgrade() -> None:
    """Nothing runs before the first release's tables are there."""
    role = context.config.attributes["application_role"]
    for statement in _statements(TABLES):
        op.execute(statement)
    op.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    for statement in FUNCTIONS.split("\n\n"):
        for part in _function_statements(statement):
            op.execute(part)
    for table, kind, column in PUBLISHED:
        for event, side in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            op.execute(
                f"CREATE TRIGGER {table}_{event.lower()}_is_noted AFTER {event} ON {table} REFERENCING {side} TABLE AS changed "
                f"FOR EACH STATEMENT EXECUTE FUNCTION glottis_note_change('{kind}', '{column}')"
            )
    for table in TENANT_TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY own_workspace ON {table} USING (workspace = glottis_workspace()) "
            "WITH CHECK (workspace = glottis_workspace())"
        )
        # Reads for publication and re-wrapping go over all tenants; nothing is written in that mode but the outbox's end.
        op.execute(f"CREATE POLICY publisher_reads ON {table} FOR SELECT USING (glottis_is_publisher())")
    op.execute("CREATE POLICY publisher_ends ON outbox FOR DELETE USING (glottis_is_publisher())")
    op.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
    for table in (*TENANT_TABLES, "signing_keys"):
        rights = "SELECT, INSERT" if table == "audit" else "SELECT, INSERT, UPDATE, DELETE"
        op.execute(f"GRANT {rights} ON {table} TO {role}")
    op.execute(f"GRANT SELECT, UPDATE ON publication TO {role}")
    op.execute(f"GRANT SELECT, INSERT ON owner_secrets TO {role}")
    op.execute(f"GRANT SELECT ON alembic_version TO {role}")


def _statements(script: str) -> list[str]:
    return [statement for statement in script.split(";\n") if statement.strip()]


def _function_statements(script: str) -> list[str]:
    """Return the statements of a part of FUNCTIONS: bodies in dollar quotes hold semicolons of their own."""
    parts: list[str] = []
    rest = script.strip()
    while rest:
        end = rest.find("$$;", rest.find("$$") + 2) + 3 if rest.startswith(("CREATE FUNCTION", "--")) else rest.find(";") + 1
        parts.append(rest[:end].rstrip(";"))
        rest = rest[end:].strip()
    return parts

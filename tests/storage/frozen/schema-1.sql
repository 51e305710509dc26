SELECT pg_catalog.set_config('search_path', '', false);
CREATE TABLE public.combinations (
    id integer NOT NULL,
    study_id character varying NOT NULL,
    key character varying NOT NULL,
    status character varying NOT NULL,
    lock_hash character varying,
    reason text NOT NULL
);
CREATE SEQUENCE public.combinations_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.combinations_id_seq OWNED BY public.combinations.id;
CREATE TABLE public.decisions (
    id integer NOT NULL,
    study_id character varying NOT NULL,
    at timestamp with time zone NOT NULL,
    kind character varying NOT NULL,
    payload json NOT NULL
);
CREATE SEQUENCE public.decisions_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.decisions_id_seq OWNED BY public.decisions.id;
CREATE TABLE public.locks (
    content_hash character varying NOT NULL,
    python character varying NOT NULL,
    platform character varying NOT NULL,
    created_at timestamp with time zone NOT NULL,
    text text NOT NULL
);
CREATE TABLE public.logs (
    trial_sequence integer NOT NULL,
    stdout bytea NOT NULL,
    stderr bytea NOT NULL,
    stack bytea NOT NULL
);
CREATE TABLE public.meta (
    name character varying NOT NULL,
    value character varying NOT NULL
);
CREATE TABLE public.packages (
    lock_hash character varying NOT NULL,
    manager character varying NOT NULL,
    name character varying NOT NULL,
    version character varying NOT NULL,
    build character varying NOT NULL,
    url character varying NOT NULL,
    sha256 character varying NOT NULL
);
CREATE TABLE public.studies (
    id character varying NOT NULL,
    name character varying NOT NULL,
    digest character varying NOT NULL,
    status character varying NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    exclude_newer timestamp with time zone,
    version character varying NOT NULL,
    host character varying NOT NULL,
    username character varying NOT NULL,
    matrix_path character varying NOT NULL,
    description text NOT NULL,
    grid json NOT NULL,
    settings json NOT NULL,
    verdict json,
    matrix_text text NOT NULL
);
CREATE TABLE public.trials (
    sequence integer NOT NULL,
    trial_id character varying NOT NULL,
    study_id character varying NOT NULL,
    combination_id integer NOT NULL,
    lock_hash character varying NOT NULL,
    outcome character varying NOT NULL,
    evidence character varying NOT NULL,
    returncode bigint,
    phase character varying NOT NULL,
    started_at timestamp with time zone NOT NULL,
    recorded_at timestamp with time zone NOT NULL,
    duration double precision NOT NULL,
    killed_by_us boolean NOT NULL,
    hash_seed bigint NOT NULL,
    copies json NOT NULL,
    host character varying NOT NULL,
    worker character varying NOT NULL,
    gpu character varying NOT NULL,
    signature text NOT NULL,
    detail text NOT NULL
);
CREATE SEQUENCE public.trials_sequence_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.trials_sequence_seq OWNED BY public.trials.sequence;
ALTER TABLE ONLY public.combinations ALTER COLUMN id SET DEFAULT nextval('public.combinations_id_seq'::regclass);
ALTER TABLE ONLY public.decisions ALTER COLUMN id SET DEFAULT nextval('public.decisions_id_seq'::regclass);
ALTER TABLE ONLY public.trials ALTER COLUMN sequence SET DEFAULT nextval('public.trials_sequence_seq'::regclass);
INSERT INTO public.combinations VALUES (1, 'a22e120a593c4a73974f9b599f1b0a55', '[["orjson","1.0"]]', 'solvable', '10101010101010101010101010101010', '');
INSERT INTO public.combinations VALUES (2, 'a22e120a593c4a73974f9b599f1b0a55', '[["orjson","1.1"]]', 'unsolvable', NULL, 'no wheel for this Python');
INSERT INTO public.combinations VALUES (3, 'a22e120a593c4a73974f9b599f1b0a55', '[["orjson","2.0"]]', 'solvable', '20202020202020202020202020202020', '');
INSERT INTO public.decisions VALUES (1, 'a22e120a593c4a73974f9b599f1b0a55', '2026-11-21 12:21:58.706946+00', 'ask', '{"after_trials": 0}');
INSERT INTO public.locks VALUES ('10101010101010101010101010101010', '3.11', 'linux-64', '2026-11-21 12:21:58.679847+00', '# lock of 1.0
');
INSERT INTO public.locks VALUES ('20202020202020202020202020202020', '3.11', 'linux-64', '2026-11-21 12:21:58.679847+00', '# lock of 2.0
');
INSERT INTO public.logs VALUES (1, '\x789cf30bf55160d0514854c8c9cf4b55282e2d2aca4f4f2c495578bba901289aa7905a9c9c5890aa201d6d6c98aba3909778787d59aac2a319cd5c7ea31a47358e6a1cd538aa7154e3a8c6518da31a47350e478d009b5bfc4c', '\x789c734b2c49cc5108a82cc9c8cf53482d2aca2fb252084e4dcf4dcd2b492cc9048aa52596e694700100205d0e63', '\x789c535070cbcc495550aad02ba854d251c8c9cc4b553054c8cc53c84dcccce3020083db08bf');
INSERT INTO public.logs VALUES (2, '\x789c030000000001', '\x789c030000000001', '\x789c030000000001');
INSERT INTO public.logs VALUES (3, '\x789c030000000001', '\x789c030000000001', '\x789c030000000001');
INSERT INTO public.logs VALUES (4, '\x789c030000000001', '\x789c030000000001', '\x789c030000000001');
INSERT INTO public.meta VALUES ('created_by', 'bisect-env 0.1.0');
INSERT INTO public.meta VALUES ('schema', '1');
INSERT INTO public.packages VALUES ('10101010101010101010101010101010', 'pip', 'orjson', '1.0', '', 'https://files.example/orjson-1.0.whl', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa');
INSERT INTO public.packages VALUES ('10101010101010101010101010101010', 'pip', 'zipp', '3.0', '', 'https://files.example/zipp-3.0.whl', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb');
INSERT INTO public.packages VALUES ('20202020202020202020202020202020', 'pip', 'orjson', '2.0', '', 'https://files.example/orjson-2.0.whl', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa');
INSERT INTO public.packages VALUES ('20202020202020202020202020202020', 'pip', 'zipp', '3.0', '', 'https://files.example/zipp-3.0.whl', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb');
INSERT INTO public.studies VALUES ('a22e120a593c4a73974f9b599f1b0a55', 'orjson', 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', 'finished', '2026-11-21 12:21:58.667709+00', '2026-11-21 12:21:58.708799+00', '2026-11-21 12:21:58.708799+00', '2026-11-01 12:30:00.25+00', '0.1.0', 'here', 'somebody', 'matrices/orjson.yaml', 'crashes since 2.0 — perhaps', '[{"name": "orjson", "kind": "package", "direction": "regression", "values": ["1.0", "1.1", "2.0"]}]', '{"confidence": 0.95, "max_trials": 400}', '{"status": "confirmed", "first_bad": {"orjson": "2.0"}, "probability": 0.97}', 'version: 1
');
INSERT INTO public.trials VALUES (1, '2f2ad5fef05d4116820cd5df1bcbb7b0', 'a22e120a593c4a73974f9b599f1b0a55', 3, '20202020202020202020202020202020', 'crash', 'bad', -11, 'body', '2026-11-03 08:00:00.123456+00', '2026-11-21 12:21:58.691832+00', 0.25, true, 4294967295, '{"crash": 2, "pass": 8}', 'here', 'worker-0', 'GPU-1,GPU-2', '[1,"crash:SIGSEGV","body","x.py:main"]', 'SIGSEGV while `dumps` ran');
INSERT INTO public.trials VALUES (2, 'ff22a9ebb300412dbf6d41f659c629d2', 'a22e120a593c4a73974f9b599f1b0a55', 1, '10101010101010101010101010101010', 'pass', 'good', 0, 'body', '2026-11-02 08:00:00+00', '2026-11-21 12:21:58.697161+00', 0.25, false, 0, '{"pass": 1}', 'here', 'worker-0', '', '', '');
INSERT INTO public.trials VALUES (3, '5bcd0b0c8816466fa68338af906e8fb0', 'a22e120a593c4a73974f9b599f1b0a55', 1, '10101010101010101010101010101010', 'pass', 'good', 0, 'body', '2026-11-02 08:00:00+00', '2026-11-21 12:21:58.700774+00', 0.25, false, 0, '{"pass": 1}', 'here', 'worker-0', '', '', '');
INSERT INTO public.trials VALUES (4, '4022083610984360bbb2c51b32daf12f', 'a22e120a593c4a73974f9b599f1b0a55', 1, '10101010101010101010101010101010', 'pass', 'good', 0, 'body', '2026-11-02 08:00:00+00', '2026-11-21 12:21:58.704269+00', 0.25, false, 0, '{"pass": 1}', 'here', 'worker-0', '', '', '');
SELECT pg_catalog.setval('public.combinations_id_seq', 3, true);
SELECT pg_catalog.setval('public.decisions_id_seq', 1, true);
SELECT pg_catalog.setval('public.trials_sequence_seq', 4, true);
ALTER TABLE ONLY public.combinations
    ADD CONSTRAINT combinations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT decisions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.locks
    ADD CONSTRAINT locks_pkey PRIMARY KEY (content_hash);
ALTER TABLE ONLY public.logs
    ADD CONSTRAINT logs_pkey PRIMARY KEY (trial_sequence);
ALTER TABLE ONLY public.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.packages
    ADD CONSTRAINT packages_pkey PRIMARY KEY (lock_hash, manager, name);
ALTER TABLE ONLY public.studies
    ADD CONSTRAINT studies_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT trials_pkey PRIMARY KEY (sequence);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT trials_trial_id_key UNIQUE (trial_id);
ALTER TABLE ONLY public.combinations
    ADD CONSTRAINT uq_combinations_study_id_key UNIQUE (study_id, key);
CREATE INDEX ix_combinations_lock_hash ON public.combinations USING btree (lock_hash);
CREATE INDEX ix_decisions_study_id ON public.decisions USING btree (study_id);
CREATE INDEX ix_packages_name_version ON public.packages USING btree (name, version);
CREATE INDEX ix_studies_created_at ON public.studies USING btree (created_at);
CREATE INDEX ix_studies_name_digest ON public.studies USING btree (name, digest);
CREATE INDEX ix_trials_combination_id ON public.trials USING btree (combination_id);
CREATE INDEX ix_trials_lock_hash ON public.trials USING btree (lock_hash);
CREATE INDEX ix_trials_study_counts ON public.trials USING btree (study_id, combination_id, evidence, outcome);
ALTER TABLE ONLY public.combinations
    ADD CONSTRAINT combinations_lock_hash_fkey FOREIGN KEY (lock_hash) REFERENCES public.locks(content_hash);
ALTER TABLE ONLY public.combinations
    ADD CONSTRAINT combinations_study_id_fkey FOREIGN KEY (study_id) REFERENCES public.studies(id);
ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT decisions_study_id_fkey FOREIGN KEY (study_id) REFERENCES public.studies(id);
ALTER TABLE ONLY public.logs
    ADD CONSTRAINT logs_trial_sequence_fkey FOREIGN KEY (trial_sequence) REFERENCES public.trials(sequence);
ALTER TABLE ONLY public.packages
    ADD CONSTRAINT packages_lock_hash_fkey FOREIGN KEY (lock_hash) REFERENCES public.locks(content_hash);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT trials_combination_id_fkey FOREIGN KEY (combination_id) REFERENCES public.combinations(id);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT trials_lock_hash_fkey FOREIGN KEY (lock_hash) REFERENCES public.locks(content_hash);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT trials_study_id_fkey FOREIGN KEY (study_id) REFERENCES public.studies(id);

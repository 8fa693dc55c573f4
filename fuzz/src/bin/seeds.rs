//! Checks that every hostile message of the corpus has the expected result. Then writes the
//! messages as seeds of the fuzz targets.
//!
//!   cargo run --manifest-path fuzz/Cargo.toml --bin seeds

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fuzz::corpus::{ExpectedOutcome, HostileCase};
use fuzz::{decode, topics};
use protocol::{Channel, ClientMessage, Rejection, TopicScheme, handshake, status};

/// The client id that replaces `{id}` in topics.
const CLIENT_ID: &str = "client-under-test";
/// Maximum payload size that a broker accepts. Every broker drops a larger payload.
const MAX_BROKER_BYTES: usize = 1024 * 1024;
/// Maximum size of a seed. Larger payloads are checked, but not written as seeds. `dev/fuzz` sets
/// `-max_len` to the same value.
const MAX_SEED_BYTES: usize = 4096;

fn main() -> ExitCode {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus_file = crate_dir.join("../crates/cloud-connector/tests/corpus/hostile.json");
    let text = fs::read_to_string(&corpus_file).expect("cannot read the corpus");
    let cases: Vec<HostileCase> = serde_json::from_str(&text).expect("the corpus is invalid");

    let mut case_names = BTreeSet::new();
    let mut outcome_counts = BTreeMap::<_, usize>::new();
    let mut failed_cases = 0;
    for case in &cases {
        // The fuzz targets use the same checks. A check panics if an invariant is violated, because
        // the fuzzer reports a panic as a failure.
        let mut result = catch_unwind(|| check_hostile_case(case))
            .unwrap_or_else(|_| Err("an invariant is violated; see the panic above".to_owned()));
        if !case_names.insert(&case.name) {
            result = Err("the name is not unique".to_owned());
        }
        if let Err(error) = result {
            eprintln!("{}: {error}", case.name);
            failed_cases += 1;
        }
        let outcome = (
            case.expected_outcome,
            case.expected_reason.as_deref().unwrap_or_default(),
        );
        *outcome_counts.entry(outcome).or_default() += 1;
    }
    for ((outcome, reason), count) in &outcome_counts {
        println!("{count:5}  {outcome:?} {reason}");
    }
    println!("{:5}  cases, {failed_cases} failed", cases.len());
    if failed_cases > 0 {
        return ExitCode::FAILURE;
    }
    for case in &cases {
        write_seeds(&crate_dir.join("corpus"), case);
    }
    ExitCode::SUCCESS
}

fn check_hostile_case(case: &HostileCase) -> Result<(), String> {
    let is_kebab_case = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if case.name.is_empty() || !case.name.chars().all(is_kebab_case) {
        return Err("the name is not in kebab case".to_owned());
    }
    if case.description.is_empty() {
        return Err("the description is empty".to_owned());
    }
    let payload = case.payload_bytes()?;
    match (&case.channel, &case.topic) {
        (Some(name), None) => {
            let channel = channel_by_name(name).ok_or("unknown channel")?;
            if case.expected_outcome == ExpectedOutcome::DroppedByBroker {
                return match payload.len() > MAX_BROKER_BYTES {
                    true => Ok(()),
                    false => Err(format!("brokers accept {} bytes", payload.len())),
                };
            }
            if payload.len() > MAX_BROKER_BYTES {
                return Err("every broker drops the message".to_owned());
            }
            check_outcome(case, &decode::check_decoding(channel, &payload))
        }
        (None, Some(topic)) => check_topic_case(case, &topic.replace("{id}", CLIENT_ID), &payload),
        _ => Err("exactly one of channel and topic is required".to_owned()),
    }
}

fn channel_by_name(name: &str) -> Option<Channel> {
    match name {
        "control" => Some(status::CONTROL_FROM_CLIENT),
        "data" => Some(status::DATA_FROM_CLIENT),
        "handshake" => Some(handshake::FROM_CLIENT),
        "status" => Some(handshake::STATUS_FROM_CLIENT),
        _ => None,
    }
}

/// Checks a hostile message with an unusual topic. Decodes the message with the topic names of the
/// first test deployment.
fn check_topic_case(case: &HostileCase, topic: &str, payload: &[u8]) -> Result<(), String> {
    topics::check_topic(topic);
    if !case.needs_open_broker {
        return Err("access control lists forbid the topic; set needs_open_broker".to_owned());
    }
    if topic.contains(['+', '#', '\0']) {
        return match case.expected_outcome {
            ExpectedOutcome::DroppedByBroker => Ok(()),
            _ => Err("brokers drop messages with this topic".to_owned()),
        };
    }
    let (prefixes, settings) = topics::test_deployments().swap_remove(0);
    let topics = TopicScheme::new(prefixes, &settings);
    let filters = topics.subscription_filters();
    if !filters
        .iter()
        .any(|(_, filter)| topics::filter_matches(filter, topic))
    {
        return check_outcome(case, &Ok(ClientMessage::Ignored));
    }
    let Some(parsed) = topics.parse(topic) else {
        return check_outcome(case, &Err(Rejection::unknown_topic()));
    };
    let expected_client = case
        .expected_client
        .as_ref()
        .map(|id| id.replace("{id}", CLIENT_ID));
    if expected_client.as_deref() != Some(parsed.client.as_str()) {
        return Err(format!("the topic belongs to client {:?}", parsed.client));
    }
    check_outcome(case, &decode::check_decoding(parsed.channel, payload))
}

fn check_outcome(
    case: &HostileCase,
    result: &Result<ClientMessage, Rejection>,
) -> Result<(), String> {
    let (outcome, reason, handshake_error, heartbeat) = match result {
        Ok(ClientMessage::Online(_)) => (ExpectedOutcome::Online, None, false, false),
        Ok(ClientMessage::Offline { .. }) => (ExpectedOutcome::Offline, None, false, false),
        Ok(ClientMessage::Heartbeat | ClientMessage::Response(_)) => {
            (ExpectedOutcome::Ignored, None, false, true)
        }
        Ok(ClientMessage::Ignored) => (ExpectedOutcome::Ignored, None, false, false),
        Ok(ClientMessage::InvalidHandshake(error)) => {
            let reason = error.rejection.reason;
            (
                ExpectedOutcome::DeadLetter,
                Some(reason.as_str()),
                true,
                false,
            )
        }
        Err(rejection) => {
            let reason = rejection.reason;
            (
                ExpectedOutcome::DeadLetter,
                Some(reason.as_str()),
                false,
                false,
            )
        }
    };
    let expected = (
        case.expected_outcome,
        case.expected_reason.as_deref(),
        case.expects_handshake_error,
        case.counts_as_heartbeat,
    );
    if (outcome, reason, handshake_error, heartbeat) == expected {
        return Ok(());
    }
    Err(format!("expected {expected:?}, got {result:?}"))
}

fn write_seeds(corpus_dir: &Path, case: &HostileCase) {
    let write_seed = |target: &str, bytes: &[u8]| {
        if bytes.len() > MAX_SEED_BYTES {
            return;
        }
        let folder: PathBuf = corpus_dir.join(target);
        fs::create_dir_all(&folder).expect("cannot create the seed folder");
        fs::write(folder.join(&case.name), bytes).expect("cannot write the seed");
    };
    let payload = case
        .payload_bytes()
        .expect("the payload was checked before");
    match case.channel.as_deref() {
        Some("control") => write_seed("status_control", &payload),
        Some("data") => write_seed("status_data", &payload),
        Some(_) => write_seed("handshake", &payload),
        None => {}
    }
    if let Some(topic) = &case.topic {
        write_seed("topics", topic.replace("{id}", CLIENT_ID).as_bytes());
    }
    // The target `round_trip` generates the message id and the time from the first 32 bytes, and
    // texts from the remaining bytes.
    write_seed("round_trip", &[&[0; 32], payload.as_slice()].concat());
}

//! Checks every case of the corpus of hostile messages against the protocol, and writes it where
//! its fuzzer starts from.
//!
//!   cargo run --manifest-path fuzz/Cargo.toml --bin seeds

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fuzz::corpus::{Becomes, Case};
use fuzz::protocol::{Direction, Rejection, Channel, ClientMessage, TopicScheme};
use fuzz::{reading, topics};

/// Stands for the client in a topic.
const CLIENT: &str = "client-under-test";
/// What every broker drops is larger than this.
const BROKER_MAX_BYTES: usize = 1024 * 1024;
/// The fuzzers are run with this `-max_len`. Larger cases are checked here alone.
const SEED_MAX_BYTES: usize = 4096;

fn main() -> ExitCode {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = here.join("../tests/corpus/hostile.json");
    let text = fs::read_to_string(&file).expect("the corpus is there");
    let cases: Vec<Case> = serde_json::from_str(&text).expect("the corpus has its own shape");

    let (mut names, mut outcomes) = (BTreeSet::new(), BTreeMap::<_, usize>::new());
    let mut wrong = 0;
    for case in &cases {
        // What must hold of every message is asserted, so that a fuzzer stops at it.
        let mut found = catch_unwind(|| check(case))
            .unwrap_or_else(|_| Err("what must hold of every message does not".to_owned()));
        if !names.insert(&case.name) {
            found = Err("there is another case of this name".to_owned());
        }
        if let Err(why) = found {
            eprintln!("{}: {why}", case.name);
            wrong += 1;
        }
        let outcome = (case.becomes, case.reason.as_deref().unwrap_or_default());
        *outcomes.entry(outcome).or_default() += 1;
    }
    for ((becomes, reason), count) in &outcomes {
        println!("{count:5}  {becomes:?} {reason}");
    }
    println!("{:5}  cases, {wrong} wrong", cases.len());
    if wrong > 0 {
        return ExitCode::FAILURE;
    }
    for case in &cases {
        seed(&here.join("corpus"), case);
    }
    ExitCode::SUCCESS
}

fn check(case: &Case) -> Result<(), String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if case.name.is_empty() || !case.name.chars().all(is_name) {
        return Err("its name is not in kebab case".to_owned());
    }
    if case.why.is_empty() {
        return Err("it does not say why".to_owned());
    }
    let bytes = case.bytes()?;
    match (&case.route, &case.topic) {
        (Some(route), None) => {
            let route = route_of(route).ok_or("there is no such route")?;
            if case.becomes == Becomes::DroppedByBroker {
                return match bytes.len() > BROKER_MAX_BYTES {
                    true => Ok(()),
                    false => Err(format!("a broker takes {} bytes", bytes.len())),
                };
            }
            if bytes.len() > BROKER_MAX_BYTES {
                return Err("no broker lets it through".to_owned());
            }
            expect(case, &reading::check(route, &bytes))
        }
        (None, Some(topic)) => check_topic(case, &topic.replace("{id}", CLIENT), &bytes),
        _ => Err("it needs exactly one of route and topic".to_owned()),
    }
}

fn route_of(short_text: &str) -> Option<Channel> {
    match short_text {
        "control" => Some(Channel::Control(Direction::FromClient)),
        "data" => Some(Channel::Data(Direction::FromClient)),
        "handshake" => Some(Channel::Handshake(Direction::FromClient)),
        "state" => Some(Channel::State),
        _ => None,
    }
}

/// What becomes of a message on a topic of its own making, in the first deployment.
fn check_topic(case: &Case, topic: &str, bytes: &[u8]) -> Result<(), String> {
    topics::check(topic);
    if case.needs.as_deref() != Some("open_broker") {
        return Err("access lists keep clients from it: it needs an open_broker".to_owned());
    }
    if topic.contains(['+', '#', '\0']) {
        return match case.becomes {
            Becomes::DroppedByBroker => Ok(()),
            _ => Err("no message of MQTT has this topic".to_owned()),
        };
    }
    let (prefixes, words) = topics::deployments().swap_remove(0);
    let topics = TopicScheme::new(prefixes, words);
    if !topics
        .filters()
        .iter()
        .any(|filter| topics::matches(filter, topic))
    {
        return expect(case, &Ok(ClientMessage::Ignored));
    }
    let Some(own) = topics.parse(topic) else {
        return expect(case, &Err(Rejection::unknown_topic()));
    };
    let client = case
        .client
        .as_ref()
        .map(|name| name.replace("{id}", CLIENT));
    if client.as_deref() != Some(own.client.as_str()) {
        return Err(format!("it is of the client {:?}", own.client));
    }
    expect(case, &reading::check(own.route, bytes))
}

fn expect(case: &Case, result: &Result<ClientMessage, Rejection>) -> Result<(), String> {
    let (becomes, reason, refused, sign_of_life) = match result {
        Ok(ClientMessage::Online(_)) => (Becomes::Online, None, false, false),
        Ok(ClientMessage::Offline) => (Becomes::Offline, None, false, false),
        Ok(ClientMessage::Heartbeat | ClientMessage::Response(_)) => (Becomes::Ignored, None, false, true),
        Ok(ClientMessage::Ignored) => (Becomes::Ignored, None, false, false),
        Ok(ClientMessage::InvalidHandshake(refusal)) => (Becomes::DeadLetter, Some(refusal.why.reason), true, false),
        Err(rejected) => (Becomes::DeadLetter, Some(rejected.reason), false, false),
    };
    let expected = (
        case.becomes,
        case.reason.as_deref(),
        case.refused,
        case.sign_of_life,
    );
    if (becomes, reason, refused, sign_of_life) == expected {
        return Ok(());
    }
    Err(format!("{expected:?} was expected, it is {result:?}"))
}

fn seed(corpus: &Path, case: &Case) {
    let write = |target: &str, bytes: &[u8]| {
        if bytes.len() > SEED_MAX_BYTES {
            return;
        }
        let folder: PathBuf = corpus.join(target);
        fs::create_dir_all(&folder).expect("a folder for seeds");
        fs::write(folder.join(&case.name), bytes).expect("a seed");
    };
    let bytes = case.bytes().expect("checked before");
    match case.route.as_deref() {
        Some("control") => write("status_control", &bytes),
        Some("data") => write("status_data", &bytes),
        Some(_) => write("handshake", &bytes),
        None => {}
    }
    if let Some(topic) = &case.topic {
        write("topics", topic.replace("{id}", CLIENT).as_bytes());
    }
    // Any bytes are as good as others there; these hold text that is worth sending.
    write("round_trip", &[&[0; 32], bytes.as_slice()].concat());
}

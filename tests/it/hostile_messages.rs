//! Hostile messages through real brokers, each between good ones: what must become of each does,
//! and every good one is recorded. The messages are in `tests/corpus/hostile.json`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use tokio::time::{Duration, timeout};

use crate::each_deployment;
use crate::support::deployment::Settings;
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, TIMEOUT, unique};

/// Side by side.
const LANES: usize = 8;

const SETTINGS: Settings<'static> = &[
    ("mqtt.prefixes", r#"["redhat/insights", "qa/insights"]"#),
    ("mqtt.handshake_topics.status", "status"),
    ("dead_letters.max_per_client", "100"),
];

each_deployment!(hostile_messages_between_good_ones with SETTINGS);

/// A message, and what must become of it.
struct Case {
    name: String,
    topic: String,
    payload: Vec<u8>,
    becomes: String,
    reason: Option<String>,
    refused: bool,
    needs_open_broker: bool,
    broker_may_refuse: bool,
    /// Who publishes it, and whose it is.
    publisher: String,
    client: Option<String>,
}

fn cases() -> Vec<Case> {
    let text = include_str!("../corpus/hostile.json");
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    assert!(all.len() >= 60, "only {} cases", all.len());
    all.iter().map(Case::read).collect()
}

impl Case {
    fn read(case: &Value) -> Self {
        let id = unique("h");
        let name = case["name"].as_str().unwrap().to_owned();
        let fill = |text: &Value| text.as_str().map(|text| text.replace("{id}", &id));
        let topic = match case["route"].as_str() {
            Some("control") => format!("redhat/insights/{id}/control/out"),
            Some("data") => format!("redhat/insights/{id}/data/out"),
            Some("handshake") => format!("redhat/insights/in/{id}"),
            Some("state") => format!("redhat/insights/status/{id}"),
            _ => fill(&case["topic"]).unwrap_or_else(|| panic!("{name} has no topic")),
        };
        let client = match case["route"] {
            Value::Null => fill(&case["client"]),
            _ => Some(id.clone()),
        };
        Self {
            payload: payload(case),
            becomes: case["becomes"].as_str().unwrap().to_owned(),
            reason: case["reason"].as_str().map(str::to_owned),
            refused: case["refused"] == true,
            needs_open_broker: case["needs"] == "open_broker",
            broker_may_refuse: case["broker_may_refuse"] == true,
            publisher: id,
            name,
            topic,
            client,
        }
    }
}

fn payload(case: &Value) -> Vec<u8> {
    if let Some(text) = case["payload"].as_str() {
        return text.as_bytes().to_vec();
    }
    if let Some(hex) = case["payload_hex"].as_str() {
        let digits = hex.as_bytes().chunks(2);
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        return digits.map(byte).collect();
    }
    let repeat = &case["payload_repeat"];
    let text = |key: &str| repeat[key].as_str().unwrap_or_default();
    let count = usize::try_from(repeat["count"].as_u64().unwrap()).unwrap();
    [text("prefix"), &text("unit").repeat(count), text("suffix")]
        .concat()
        .into_bytes()
}

/// Publishes a case and then a good message of somebody else. Returns whether the broker took the
/// hostile one, the good one's name, and both connections: in the embedded set-up a client is
/// connected while its connection is.
async fn publish(address: &str, case: &Case) -> (bool, String, [RawClient; 2]) {
    let (taken, hostile) = publish_hostile(address, case).await;
    let good = unique("good");
    let mut client = RawClient::connect(address, &Connect::new(&good).patient()).await;
    client.must_publish(&control_out(&good), &online()).await;
    (taken, good, [hostile, client])
}

async fn publish_hostile(address: &str, case: &Case) -> (bool, RawClient) {
    let connect = if case.needs_open_broker {
        // The service itself may publish anywhere, so through it these get past the broker's rules.
        Connect::new(&case.publisher).user("cloud-connector", "cc-secret")
    } else {
        Connect::new(&case.publisher)
    };
    let mut client = RawClient::connect(address, &connect.patient()).await;
    if case.becomes == "offline" {
        client
            .must_publish(&control_out(&case.publisher), &online())
            .await;
    }
    if case.refused {
        let heard_on = format!("redhat/insights/out/{}", case.publisher);
        assert_eq!(client.subscribe(&heard_on).await, 1);
    }
    let taken = client.publish(&case.topic, &case.payload).await.is_some();
    if case.refused {
        let told = timeout(TIMEOUT, client.message()).await;
        let (_, told) = told.unwrap_or_else(|_| panic!("{}: the client is not told", case.name));
        assert_eq!(told["type"], "handshake-error", "{}", case.name);
    }
    (taken, client)
}

async fn hostile_messages_between_good_ones(subject: Deployment) {
    let mut cases = cases();
    if !subject.has_outside_broker() {
        cases.retain(|case| !case.needs_open_broker);
    }
    let cases = Arc::new(cases);
    let mut lanes = Vec::new();
    for lane in 0..LANES {
        let (cases, address) = (cases.clone(), subject.mqtt());
        lanes.push(tokio::spawn(async move {
            let mut done = Vec::new();
            for (n, case) in cases.iter().enumerate() {
                if n % LANES == lane {
                    done.push((n, publish(&address, case).await));
                }
            }
            done
        }));
    }
    let mut taken = HashMap::new();
    let mut good = Vec::new();
    for lane in lanes {
        for (n, (was_taken, name, clients)) in lane.await.unwrap() {
            taken.insert(n, was_taken);
            good.push((name, clients));
        }
    }
    check(&subject, &cases, &taken, &good).await;
}

/// Waits until everything that must show does, and then looks for what must not.
async fn check(
    subject: &Deployment,
    cases: &[Case],
    taken: &HashMap<usize, bool>,
    good: &[(String, [RawClient; 2])],
) {
    let counts = |n: usize| taken[&n] || !cases[n].broker_may_refuse;
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        let state = State::of(subject).await;
        let missing: Vec<String> = cases
            .iter()
            .enumerate()
            .filter(|(n, _)| counts(*n))
            .filter_map(|(_, case)| state.missing(case))
            .chain(good.iter().filter_map(|(name, _)| state.missing_good(name)))
            .collect();
        if missing.is_empty() {
            break;
        }
        let late = std::time::Instant::now() > deadline;
        assert!(!late, "{} wrong:\n{}", missing.len(), missing.join("\n"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let state = State::of(subject).await;
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| state.too_much(case))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(subject.is_ready().await);
    println!("{} hostile and {} good messages", cases.len(), good.len());
}

/// Who is connected, and the dead letters' reasons by client and topic.
struct State {
    connected: HashSet<String>,
    letters: HashMap<(Option<String>, String), String>,
}

impl State {
    async fn of(subject: &Deployment) -> Self {
        let letters = subject.dead_letters().await;
        let letters = letters.iter().map(|letter| {
            let text = |key: &str| letter[key].as_str().map(str::to_owned);
            let topic: String = text("topic").unwrap().chars().take(1000).collect();
            ((text("client_id"), topic), text("reason").unwrap())
        });
        Self {
            letters: letters.collect(),
            connected: subject.listed().await,
        }
    }

    fn reason(&self, case: &Case) -> Option<&String> {
        let topic: String = case.topic.chars().take(1000).collect();
        self.letters.get(&(case.client.clone(), topic))
    }

    fn is_connected(&self, case: &Case) -> bool {
        let client = case.client.as_ref();
        client.is_some_and(|client| self.connected.contains(client))
    }

    fn missing(&self, case: &Case) -> Option<String> {
        let (name, becomes) = (&case.name, &case.becomes);
        match becomes.as_str() {
            "dead_letter" if self.reason(case) != case.reason.as_ref() => Some(format!(
                "{name}: no dead letter for {:?} but for {:?}",
                case.reason,
                self.reason(case)
            )),
            "online" if !self.is_connected(case) => Some(format!("{name}: not online")),
            "offline" if self.is_connected(case) => Some(format!("{name}: not offline")),
            _ => None,
        }
    }

    fn missing_good(&self, name: &String) -> Option<String> {
        (!self.connected.contains(name)).then(|| format!("{name} was not recorded"))
    }

    fn too_much(&self, case: &Case) -> Option<String> {
        let (name, becomes) = (&case.name, &case.becomes);
        if becomes != "dead_letter" && self.reason(case).is_some() {
            return Some(format!("{name}: a dead letter, and should be {becomes}"));
        }
        if becomes != "online" && self.is_connected(case) {
            return Some(format!("{name}: connected, and should be {becomes}"));
        }
        None
    }
}

#[test]
fn names_are_unique() {
    let cases = cases();
    let names: HashSet<&String> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
}

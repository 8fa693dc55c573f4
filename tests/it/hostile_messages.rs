//! Publishes the hostile messages of `tests/corpus/hostile.json` through real brokers, each
//! followed by a valid message. Each hostile message must have its expected result, and every
//! valid message must be recorded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use tokio::time::{Duration, timeout};

use crate::each_deployment;
use crate::support::deployment::Settings;
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, TIMEOUT, unique_id};

/// Number of tasks that publish concurrently.
const PUBLISHER_TASKS: usize = 8;
/// The store truncates the topics of dead letters to this length.
const STORED_TOPIC_CHARS: usize = 1000;

const SETTINGS: Settings<'static> = &[
    ("mqtt.prefixes", r#"["redhat/insights", "qa/insights"]"#),
    ("mqtt.handshake_topics.status", "status"),
    ("dead_letters.max_per_client", "100"),
];

each_deployment!(hostile_messages_do_not_affect_valid_ones with SETTINGS);

/// A hostile message and its expected result. `tests/corpus/README.md` describes the fields.
struct Case {
    name: String,
    topic: String,
    payload: Vec<u8>,
    expect: String,
    reason: Option<String>,
    handshake_error: bool,
    needs_open_broker: bool,
    broker_may_reject: bool,
    /// The client that publishes the message.
    publisher: String,
    /// The client that the topic belongs to.
    client: Option<String>,
}

fn load_cases() -> Vec<Case> {
    let text = include_str!("../corpus/hostile.json");
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    assert!(cases.len() >= 60, "only {} cases", cases.len());
    cases.iter().map(Case::from_json).collect()
}

impl Case {
    fn from_json(case: &Value) -> Self {
        let id = unique_id("h");
        let name = case["name"].as_str().unwrap().to_owned();
        let with_id = |text: &Value| text.as_str().map(|text| text.replace("{id}", &id));
        let topic = match case["channel"].as_str() {
            Some("control") => format!("redhat/insights/{id}/control/out"),
            Some("data") => format!("redhat/insights/{id}/data/out"),
            Some("handshake") => format!("redhat/insights/in/{id}"),
            Some("status") => format!("redhat/insights/status/{id}"),
            _ => with_id(&case["topic"]).unwrap_or_else(|| panic!("{name} has no topic")),
        };
        let client = match case["channel"] {
            Value::Null => with_id(&case["client"]),
            _ => Some(id.clone()),
        };
        Self {
            payload: payload_bytes(case),
            expect: case["expect"].as_str().unwrap().to_owned(),
            reason: case["reason"].as_str().map(str::to_owned),
            handshake_error: case["handshake_error"] == true,
            needs_open_broker: case["needs_open_broker"] == true,
            broker_may_reject: case["broker_may_reject"] == true,
            publisher: id,
            name,
            topic,
            client,
        }
    }
}

fn payload_bytes(case: &Value) -> Vec<u8> {
    if let Some(text) = case["payload"].as_str() {
        return text.as_bytes().to_vec();
    }
    if let Some(hex) = case["payload_hex"].as_str() {
        let pairs = hex.as_bytes().chunks(2);
        let decode_byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        return pairs.map(decode_byte).collect();
    }
    let repeat = &case["payload_repeat"];
    let text = |key: &str| repeat[key].as_str().unwrap_or_default();
    let count = usize::try_from(repeat["count"].as_u64().unwrap()).unwrap();
    [text("prefix"), &text("unit").repeat(count), text("suffix")]
        .concat()
        .into_bytes()
}

/// A published case.
struct Published {
    /// Whether the broker acknowledged the hostile message.
    acknowledged: bool,
    /// The client that published the valid message.
    valid_client: String,
    /// Kept open, because the embedded broker marks a client as disconnected when its connection
    /// closes.
    _connections: [RawClient; 2],
}

/// Publishes the hostile message, and then a valid message of another client.
async fn publish(address: &str, case: &Case) -> Published {
    let (acknowledged, hostile_connection) = publish_hostile(address, case).await;
    let valid_client = unique_id("good");
    let connect = Connect::new(&valid_client).without_keep_alive();
    let mut connection = RawClient::connect(address, &connect).await;
    connection
        .must_publish(&control_out(&valid_client), &online())
        .await;
    Published {
        acknowledged,
        valid_client,
        _connections: [hostile_connection, connection],
    }
}

async fn publish_hostile(address: &str, case: &Case) -> (bool, RawClient) {
    let connect = if case.needs_open_broker {
        // The access control lists allow the service to publish to any topic.
        Connect::new(&case.publisher).user("cloud-connector", "cc-secret")
    } else {
        Connect::new(&case.publisher)
    };
    let mut client = RawClient::connect(address, &connect.without_keep_alive()).await;
    if case.expect == "offline" {
        client
            .must_publish(&control_out(&case.publisher), &online())
            .await;
    }
    if case.handshake_error {
        let outbound_topic = format!("redhat/insights/out/{}", case.publisher);
        assert_eq!(client.subscribe(&outbound_topic).await, 1);
    }
    let acknowledged = client.publish(&case.topic, &case.payload).await.is_some();
    if case.handshake_error {
        let received = timeout(TIMEOUT, client.next_message()).await;
        let (_, message) =
            received.unwrap_or_else(|_| panic!("{}: no handshake-error received", case.name));
        assert_eq!(message["type"], "handshake-error", "{}", case.name);
    }
    (acknowledged, client)
}

async fn hostile_messages_do_not_affect_valid_ones(deployment: Deployment) {
    let mut cases = load_cases();
    if !deployment.has_external_broker() {
        cases.retain(|case| !case.needs_open_broker);
    }
    let cases = Arc::new(cases);
    let mut tasks = Vec::new();
    for task in 0..PUBLISHER_TASKS {
        let (cases, address) = (cases.clone(), deployment.mqtt_address());
        tasks.push(tokio::spawn(async move {
            let mut published = Vec::new();
            for (index, case) in cases.iter().enumerate() {
                if index % PUBLISHER_TASKS == task {
                    published.push((index, publish(&address, case).await));
                }
            }
            published
        }));
    }
    let mut published = HashMap::new();
    for task in tasks {
        published.extend(task.await.unwrap());
    }
    check_results(&deployment, &cases, &published).await;
}

/// Waits for the expected results, and then checks that there are no others.
async fn check_results(
    deployment: &Deployment,
    cases: &[Case],
    published: &HashMap<usize, Published>,
) {
    let was_delivered = |index: usize| {
        let published = &published[&index];
        published.acknowledged || !cases[index].broker_may_reject
    };
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        let state = RecordedState::load(deployment).await;
        let hostile = cases
            .iter()
            .enumerate()
            .filter(|(index, _)| was_delivered(*index))
            .filter_map(|(_, case)| state.missing_result(case));
        let valid = published
            .values()
            .filter_map(|published| state.missing_client(&published.valid_client));
        let missing: Vec<String> = hostile.chain(valid).collect();
        if missing.is_empty() {
            break;
        }
        assert!(
            std::time::Instant::now() <= deadline,
            "{} results missing:\n{}",
            missing.len(),
            missing.join("\n")
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let state = RecordedState::load(deployment).await;
    let unexpected: Vec<String> = cases
        .iter()
        .filter_map(|case| state.unexpected_result(case))
        .collect();
    assert!(
        unexpected.is_empty(),
        "{} unexpected results:\n{}",
        unexpected.len(),
        unexpected.join("\n")
    );
    assert!(deployment.is_ready().await);
    println!(
        "{} hostile and {} valid messages",
        cases.len(),
        published.len()
    );
}

/// The connected clients and the dead letters.
struct RecordedState {
    connected: HashSet<String>,
    /// The reason by client and topic.
    dead_letters: HashMap<(Option<String>, String), String>,
}

impl RecordedState {
    async fn load(deployment: &Deployment) -> Self {
        let dead_letters = deployment.dead_letters().await;
        let dead_letters = dead_letters.iter().map(|dead_letter| {
            let text = |key: &str| dead_letter[key].as_str().map(str::to_owned);
            let topic = stored_topic(&text("topic").unwrap());
            ((text("client_id"), topic), text("reason").unwrap())
        });
        Self {
            dead_letters: dead_letters.collect(),
            connected: deployment.list_client_ids().await,
        }
    }

    fn reason(&self, case: &Case) -> Option<&String> {
        let key = (case.client.clone(), stored_topic(&case.topic));
        self.dead_letters.get(&key)
    }

    fn is_connected(&self, case: &Case) -> bool {
        let client = case.client.as_ref();
        client.is_some_and(|client| self.connected.contains(client))
    }

    fn missing_result(&self, case: &Case) -> Option<String> {
        let name = &case.name;
        match case.expect.as_str() {
            "dead_letter" if self.reason(case) != case.reason.as_ref() => Some(format!(
                "{name}: expected a dead letter with reason {:?}, found {:?}",
                case.reason,
                self.reason(case)
            )),
            "online" if !self.is_connected(case) => Some(format!("{name}: not connected")),
            "offline" if self.is_connected(case) => Some(format!("{name}: still connected")),
            _ => None,
        }
    }

    fn missing_client(&self, client: &str) -> Option<String> {
        (!self.connected.contains(client)).then(|| format!("{client} was not recorded"))
    }

    fn unexpected_result(&self, case: &Case) -> Option<String> {
        let (name, expect) = (&case.name, &case.expect);
        if expect != "dead_letter" && self.reason(case).is_some() {
            return Some(format!("{name}: expected {expect}, found a dead letter"));
        }
        if expect != "online" && self.is_connected(case) {
            return Some(format!("{name}: expected {expect}, but it is connected"));
        }
        None
    }
}

fn stored_topic(topic: &str) -> String {
    topic.chars().take(STORED_TOPIC_CHARS).collect()
}

#[test]
fn case_names_are_unique() {
    let cases = load_cases();
    let names: HashSet<&String> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
}

//! Publishes the hostile messages of `crates/cloud-connector/tests/corpus/hostile.json` through real brokers. A valid
//! message follows each hostile message. Each hostile message must have its expected result, and
//! every valid message must be recorded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use tokio::time::{Duration, timeout};

use test_support::deployment::Settings;
use test_support::each_deployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{CONDITION_TIMEOUT, Deployment, unique_id};

/// Number of tasks that publish concurrently.
const PUBLISHER_TASK_COUNT: usize = 8;
/// The store truncates the topic of a dead letter to this number of characters.
const MAX_STORED_TOPIC_CHARS: usize = 1000;

const DEPLOYMENT_SETTINGS: Settings<'static> = &[
    ("mqtt.prefixes", r#"["redhat/insights", "qa/insights"]"#),
    ("mqtt.handshake_topics.status", "status"),
    ("dead_letters.max_per_client", "100"),
];

each_deployment!(hostile_messages_do_not_affect_valid_messages with DEPLOYMENT_SETTINGS);

/// A hostile message and its expected result. `crates/cloud-connector/tests/corpus/README.md` describes the JSON fields.
struct HostileCase {
    case_name: String,
    topic: String,
    payload: Vec<u8>,
    /// Expected result of the hostile message, from the JSON field `expect`.
    expected_result: String,
    /// Reason of the expected dead letter. `None` if no dead letter is expected.
    expected_dead_letter_reason: Option<String>,
    /// Whether the connector must send a handshake error to the client.
    expects_handshake_error: bool,
    /// Whether the access control lists of the brokers forbid the topic. Only a broker without
    /// access control lists delivers the message.
    needs_open_broker: bool,
    /// Whether some brokers reject the message.
    broker_may_reject: bool,
    /// Client id of the client that publishes the message.
    publisher_id: String,
    /// Client id of the client to which the topic belongs. `None` if the topic belongs to no
    /// client.
    topic_client_id: Option<String>,
}

fn load_cases() -> Vec<HostileCase> {
    let text = include_str!("../corpus/hostile.json");
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    assert!(cases.len() >= 60, "only {} cases", cases.len());
    cases.iter().map(HostileCase::from_json).collect()
}

impl HostileCase {
    fn from_json(case: &Value) -> Self {
        let publisher_id = unique_id("h");
        let case_name = case["name"].as_str().unwrap().to_owned();
        let replace_id = |text: &Value| {
            text.as_str()
                .map(|text| text.replace("{id}", &publisher_id))
        };
        let topic = match case["channel"].as_str() {
            Some("control") => format!("redhat/insights/{publisher_id}/control/out"),
            Some("data") => format!("redhat/insights/{publisher_id}/data/out"),
            Some("handshake") => format!("redhat/insights/in/{publisher_id}"),
            Some("status") => format!("redhat/insights/status/{publisher_id}"),
            _ => replace_id(&case["topic"]).unwrap_or_else(|| panic!("{case_name} has no topic")),
        };
        let topic_client_id = match case["channel"] {
            Value::Null => replace_id(&case["client"]),
            _ => Some(publisher_id.clone()),
        };
        Self {
            payload: payload_bytes(case),
            expected_result: case["expect"].as_str().unwrap().to_owned(),
            expected_dead_letter_reason: case["reason"].as_str().map(str::to_owned),
            expects_handshake_error: case["handshake_error"] == true,
            needs_open_broker: case["needs_open_broker"] == true,
            broker_may_reject: case["broker_may_reject"] == true,
            publisher_id,
            case_name,
            topic,
            topic_client_id,
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
    let string_field = |field: &str| repeat[field].as_str().unwrap_or_default();
    let count = usize::try_from(repeat["count"].as_u64().unwrap()).unwrap();
    [
        string_field("prefix"),
        &string_field("unit").repeat(count),
        string_field("suffix"),
    ]
    .concat()
    .into_bytes()
}

/// The outcome of publishing a hostile message and a valid message.
struct PublishedCase {
    /// Whether the broker acknowledged the hostile message.
    is_hostile_message_acknowledged: bool,
    /// Client id of the client that published the valid message.
    valid_client_id: String,
    /// Connections of the two clients. The connections stay open, because the embedded broker marks
    /// a client as disconnected when the client's connection closes.
    _connections: [RawClient; 2],
}

/// Publishes the hostile message, and then a valid message of another client.
async fn publish_case(address: &str, case: &HostileCase) -> PublishedCase {
    let (is_hostile_message_acknowledged, hostile_connection) =
        publish_hostile(address, case).await;
    let valid_client_id = unique_id("good");
    let connect = Connect::new(&valid_client_id).without_keep_alive();
    let mut connection = RawClient::connect(address, &connect).await;
    connection
        .must_publish(&control_out_topic(&valid_client_id), &online_message())
        .await;
    PublishedCase {
        is_hostile_message_acknowledged,
        valid_client_id,
        _connections: [hostile_connection, connection],
    }
}

/// Publishes the hostile message. Returns whether the broker acknowledged the message, and the
/// connected client.
async fn publish_hostile(address: &str, case: &HostileCase) -> (bool, RawClient) {
    let connect = if case.needs_open_broker {
        // The access control lists of the broker allow the user `cloud-connector` to publish to any
        // topic.
        Connect::new(&case.publisher_id).credentials("cloud-connector", "cc-secret")
    } else {
        Connect::new(&case.publisher_id)
    };
    let mut client = RawClient::connect(address, &connect.without_keep_alive()).await;
    if case.expected_result == "offline" {
        client
            .must_publish(&control_out_topic(&case.publisher_id), &online_message())
            .await;
    }
    if case.expects_handshake_error {
        let outbound_topic = format!("redhat/insights/out/{}", case.publisher_id);
        assert_eq!(client.subscribe(&outbound_topic).await, 1);
    }
    let is_hostile_message_acknowledged =
        client.publish(&case.topic, &case.payload).await.is_some();
    if case.expects_handshake_error {
        let received = timeout(CONDITION_TIMEOUT, client.next_message()).await;
        let (_, message) =
            received.unwrap_or_else(|_| panic!("{}: no handshake-error received", case.case_name));
        assert_eq!(message["type"], "handshake-error", "{}", case.case_name);
    }
    (is_hostile_message_acknowledged, client)
}

async fn hostile_messages_do_not_affect_valid_messages(deployment: Deployment) {
    let mut cases = load_cases();
    if !deployment.has_external_broker() {
        cases.retain(|case| !case.needs_open_broker);
    }
    let cases = Arc::new(cases);
    let mut tasks = Vec::new();
    for task in 0..PUBLISHER_TASK_COUNT {
        let (cases, address) = (cases.clone(), deployment.mqtt_address());
        tasks.push(tokio::spawn(async move {
            let mut published = Vec::new();
            for (index, case) in cases.iter().enumerate() {
                if index % PUBLISHER_TASK_COUNT == task {
                    published.push((index, publish_case(&address, case).await));
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

/// Waits for the expected results, and then checks that there are no unexpected results.
async fn check_results(
    deployment: &Deployment,
    cases: &[HostileCase],
    published: &HashMap<usize, PublishedCase>,
) {
    let was_delivered = |index: usize| {
        let published = &published[&index];
        published.is_hostile_message_acknowledged || !cases[index].broker_may_reject
    };
    let deadline = std::time::Instant::now() + CONDITION_TIMEOUT;
    loop {
        let state = RecordedState::load(deployment).await;
        let hostile = cases
            .iter()
            .enumerate()
            .filter(|(index, _)| was_delivered(*index))
            .filter_map(|(_, case)| state.describe_missing_result(case));
        let valid = published
            .values()
            .filter_map(|published| state.describe_missing_client(&published.valid_client_id));
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
        .filter_map(|case| state.describe_unexpected_result(case))
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

/// The connected clients and the dead letters that the connector has recorded.
struct RecordedState {
    connected_client_ids: HashSet<String>,
    /// Reason of each dead letter, by client id and topic.
    dead_letter_reasons: HashMap<(Option<String>, String), String>,
}

impl RecordedState {
    async fn load(deployment: &Deployment) -> Self {
        let dead_letters = deployment.dead_letters().await;
        let dead_letters = dead_letters.iter().map(|dead_letter| {
            let string_field = |field: &str| dead_letter[field].as_str().map(str::to_owned);
            let topic = truncate_topic(&string_field("topic").unwrap());
            (
                (string_field("client_id"), topic),
                string_field("reason").unwrap(),
            )
        });
        Self {
            dead_letter_reasons: dead_letters.collect(),
            connected_client_ids: deployment.list_client_ids().await,
        }
    }

    /// Returns the reason of the dead letter that the hostile message created. `None` if there is
    /// no such dead letter.
    fn dead_letter_reason(&self, case: &HostileCase) -> Option<&String> {
        let key = (case.topic_client_id.clone(), truncate_topic(&case.topic));
        self.dead_letter_reasons.get(&key)
    }

    fn is_connected(&self, case: &HostileCase) -> bool {
        let client = case.topic_client_id.as_ref();
        client.is_some_and(|client| self.connected_client_ids.contains(client))
    }

    /// Describes the expected result that is missing. `None` if the expected result has occurred.
    fn describe_missing_result(&self, case: &HostileCase) -> Option<String> {
        let name = &case.case_name;
        match case.expected_result.as_str() {
            "dead_letter"
                if self.dead_letter_reason(case) != case.expected_dead_letter_reason.as_ref() =>
            {
                Some(format!(
                    "{name}: expected a dead letter with reason {:?}, found {:?}",
                    case.expected_dead_letter_reason,
                    self.dead_letter_reason(case)
                ))
            }
            "online" if !self.is_connected(case) => Some(format!("{name}: not connected")),
            "offline" if self.is_connected(case) => Some(format!("{name}: still connected")),
            _ => None,
        }
    }

    /// Describes the missing client. `None` if the client is connected.
    fn describe_missing_client(&self, client_id: &str) -> Option<String> {
        (!self.connected_client_ids.contains(client_id))
            .then(|| format!("{client_id} was not recorded"))
    }

    /// Describes an unexpected result of the case. `None` if there is no unexpected result.
    fn describe_unexpected_result(&self, case: &HostileCase) -> Option<String> {
        let (name, expected_result) = (&case.case_name, &case.expected_result);
        if expected_result != "dead_letter" && self.dead_letter_reason(case).is_some() {
            return Some(format!(
                "{name}: expected {expected_result}, found a dead letter"
            ));
        }
        if expected_result != "online" && self.is_connected(case) {
            return Some(format!(
                "{name}: expected {expected_result}, but it is connected"
            ));
        }
        None
    }
}

/// Truncates a topic to the length that the store keeps.
fn truncate_topic(topic: &str) -> String {
    topic.chars().take(MAX_STORED_TOPIC_CHARS).collect()
}

#[test]
fn names_of_hostile_messages_are_unique() {
    let cases = load_cases();
    let names: HashSet<&String> = cases.iter().map(|case| &case.case_name).collect();
    assert_eq!(names.len(), cases.len());
}

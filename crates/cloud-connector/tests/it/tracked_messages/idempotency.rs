//! The header `Idempotency-Key`.

use serde_json::{Value, json};

use super::{Receiver, other_organization, wait_for_state};
use test_support::{Deployment, each_deployment, eventually, unique_id};

each_deployment!(
    repeated_request_gets_the_first_response_and_sends_nothing,
    key_of_another_request_is_rejected,
    invalid_keys_are_rejected,
    responses_survive_a_restart,
    response_of_an_interrupted_request_comes_from_the_message,
    concurrent_requests_send_one_message,
    request_that_sent_nothing_can_be_repeated,
);

/// The parts of a response.
#[derive(Debug, Clone, PartialEq)]
struct Reply {
    status: u16,
    is_replayed: bool,
    retry_after: Option<String>,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

fn message() -> Value {
    json!({"directive": "echo", "payload": "once"})
}

async fn send(request: reqwest::RequestBuilder) -> Reply {
    let response = request.send().await.unwrap();
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    Reply {
        status: response.status().as_u16(),
        is_replayed: header("idempotent-replayed").as_deref() == Some("true"),
        retry_after: header("retry-after"),
        body: response.text().await.unwrap(),
    }
}

fn request(
    deployment: &Deployment,
    client_id: &str,
    key: &str,
    body: &Value,
) -> reqwest::RequestBuilder {
    let path = format!("/v2/connections/{client_id}/message");
    let request = deployment.request("POST", &path);
    request.header("Idempotency-Key", key).json(body)
}

/// Checks that the client has received nothing since the last message.
async fn check_that_nothing_was_sent(deployment: &Deployment, receiver: &mut Receiver) {
    let marker = json!({"directive": "marker"});
    let (status, body) = deployment.send_message(&receiver.client_id, marker).await;
    assert_eq!(status, 201, "{body}");
    let (_, delivered) = receiver.client.next_message().await;
    assert_eq!(delivered["directive"], "marker");
}

async fn repeated_request_gets_the_first_response_and_sends_nothing(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let client_id = receiver.client_id.clone();
    let first = send(request(&deployment, &client_id, "key-1", &message())).await;
    assert_eq!((first.status, first.is_replayed), (201, false));
    let (_, delivered) = receiver.client.next_message().await;
    assert_eq!(delivered["message_id"], first.json()["id"]);
    let repeated = send(request(&deployment, &client_id, "key-1", &message())).await;
    assert_eq!(
        repeated,
        Reply {
            is_replayed: true,
            ..first.clone()
        }
    );
    check_that_nothing_was_sent(&deployment, &mut receiver).await;
    let other_key = send(request(&deployment, &client_id, "key-2", &message())).await;
    assert_ne!(other_key.json(), first.json());
    receiver.client.next_message().await;
    // The message is tracked.
    wait_for_state(
        &deployment,
        first.json()["id"].as_str().unwrap(),
        "acknowledged",
    )
    .await;
    // Another organization has keys of its own. It does not have the client.
    let foreign = request(&deployment, &client_id, "key-1", &message());
    assert_eq!(
        send(foreign.headers(other_organization())).await.status,
        404
    );
}

async fn key_of_another_request_is_rejected(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let client_id = receiver.client_id.clone();
    send(request(&deployment, &client_id, "key", &message())).await;
    receiver.client.next_message().await;
    let other_body = json!({"directive": "echo", "payload": "twice"});
    let rejected = send(request(&deployment, &client_id, "key", &other_body)).await;
    assert_eq!((rejected.status, rejected.is_replayed), (422, false));
    let other_client = unique_id("other");
    let rejected = send(request(&deployment, &other_client, "key", &message())).await;
    assert_eq!(rejected.status, 422);
    check_that_nothing_was_sent(&deployment, &mut receiver).await;
}

async fn invalid_keys_are_rejected(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let client_id = receiver.client_id.clone();
    for key in ["", "two words", &"x".repeat(256)] {
        let rejected = send(request(&deployment, &client_id, key, &message())).await;
        assert_eq!(rejected.status, 400, "{key}");
        assert!(
            rejected.body.contains("Idempotency-Key"),
            "{}",
            rejected.body
        );
    }
    check_that_nothing_was_sent(&deployment, &mut receiver).await;
}

async fn responses_survive_a_restart(mut deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let client_id = receiver.client_id.clone();
    let first = send(request(&deployment, &client_id, "key", &message())).await;
    assert_eq!(first.status, 201);
    deployment.restart().await;
    let repeated = eventually("the API after the restart", || async {
        let reply = send(request(&deployment, &client_id, "key", &message())).await;
        (reply.status != 503).then_some(reply)
    })
    .await;
    assert_eq!(
        repeated,
        Reply {
            is_replayed: true,
            ..first
        }
    );
}

async fn response_of_an_interrupted_request_comes_from_the_message(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let client_id = receiver.client_id.clone();
    let first = send(request(&deployment, &client_id, "key", &message())).await;
    receiver.client.next_message().await;
    // The state before the response is stored.
    deployment
        .execute("UPDATE idempotency_keys SET status = NULL, body = NULL")
        .await;
    let in_progress = send(request(&deployment, &client_id, "key", &message())).await;
    assert_eq!(in_progress.status, 409);
    assert!(in_progress.retry_after.is_some());
    deployment
        .execute(
            "UPDATE idempotency_keys SET in_progress_until = (SELECT created_at FROM messages)",
        )
        .await;
    let repeated = send(request(&deployment, &client_id, "key", &message())).await;
    assert_eq!(
        repeated,
        Reply {
            is_replayed: true,
            ..first
        }
    );
    check_that_nothing_was_sent(&deployment, &mut receiver).await;
}

async fn concurrent_requests_send_one_message(deployment: Deployment) {
    let mut receiver = Receiver::connect(&deployment).await;
    let client_id = receiver.client_id.clone();
    let requests = (0..8).map(|_| send(request(&deployment, &client_id, "key", &message())));
    let replies = futures::future::join_all(requests).await;
    let first: Vec<&Reply> = replies
        .iter()
        .filter(|reply| reply.status == 201 && !reply.is_replayed)
        .collect();
    assert_eq!(first.len(), 1, "{replies:?}");
    for reply in &replies {
        match reply.status {
            201 => assert_eq!(reply.body, first[0].body),
            409 => assert!(reply.retry_after.is_some()),
            _ => panic!("{replies:?}"),
        }
    }
    let (_, delivered) = receiver.client.next_message().await;
    assert_eq!(delivered["message_id"], first[0].json()["id"]);
    check_that_nothing_was_sent(&deployment, &mut receiver).await;
}

async fn request_that_sent_nothing_can_be_repeated(deployment: Deployment) {
    let client_id = unique_id("later");
    let not_found = send(request(&deployment, &client_id, "key", &message())).await;
    assert_eq!(not_found.status, 404);
    let keys = "SELECT count(*) FROM idempotency_keys";
    assert_eq!(deployment.count_rows(keys).await, 0);
    let mut receiver = Receiver::connect_as(&deployment, &client_id).await;
    let sent = send(request(&deployment, &client_id, "key", &message())).await;
    assert_eq!((sent.status, sent.is_replayed), (201, false));
    let (_, delivered) = receiver.client.next_message().await;
    assert_eq!(delivered["message_id"], sent.json()["id"]);
}

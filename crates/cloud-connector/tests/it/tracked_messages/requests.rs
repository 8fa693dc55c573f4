//! Requests that read, list and cancel tracked messages, and invalid requests.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::{Receiver, get_message, other_organization, wait_for_state};
use test_support::{Deployment, each_deployment};

each_deployment!(
    foreign_and_unknown_messages_have_the_same_response,
    messages_are_listed_with_filters_and_cursor,
    invalid_requests_name_the_field,
    message_that_is_not_queued_cannot_be_cancelled,
);

const UNKNOWN_ID: &str = "018f3c1e-7a2b-7c3d-8e4f-0123456789ab";

async fn foreign_and_unknown_messages_have_the_same_response(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    for method in ["GET", "DELETE"] {
        let mut responses = Vec::new();
        for id in [&id, UNKNOWN_ID, "not-an-id"] {
            let request = deployment.request(method, &format!("/v2/messages/{id}"));
            let response = request.headers(other_organization()).send().await.unwrap();
            let status = response.status().as_u16();
            responses.push((status, response.bytes().await.unwrap()));
        }
        assert_eq!(responses[0].0, 404);
        assert_eq!(responses[0], responses[1]);
        assert_eq!(responses[0], responses[2]);
    }
    let request = deployment.request("GET", "/v2/messages");
    let response = request.headers(other_organization()).send().await.unwrap();
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["data"], json!([]));
    // The foreign DELETE requests had no effect.
    wait_for_state(&deployment, &id, "acknowledged").await;
    // An id in another notation is the same id.
    let (status, message) = get_message(&deployment, &id.to_uppercase()).await;
    assert_eq!((status, &message["id"]), (200, &json!(id)));
}

async fn list(deployment: &Deployment, query: &str) -> Value {
    let request = deployment.request("GET", &format!("/v2/messages{query}"));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{query}");
    response.json().await.unwrap()
}

fn ids(page: &Value) -> Vec<String> {
    let messages = page["data"].as_array().unwrap().iter();
    messages
        .map(|message| message["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn messages_are_listed_with_filters_and_cursor(deployment: Deployment) {
    let (first, second) = (
        Receiver::connect(&deployment).await,
        Receiver::connect(&deployment).await,
    );
    let mut sent = Vec::new();
    for receiver in [&first, &second, &first] {
        sent.push(receiver.send_tracked(&deployment).await);
    }
    let newest_first: Vec<String> = sent.iter().rev().cloned().collect();
    assert_eq!(ids(&list(&deployment, "").await), newest_first);
    let page = list(&deployment, "?limit=2").await;
    assert_eq!(ids(&page), newest_first[..2]);
    let cursor = page["meta"]["cursor"].as_str().unwrap();
    let next = page["links"]["next"].as_str().unwrap();
    assert!(next.contains(cursor), "{next}");
    let last = list(&deployment, &format!("?limit=2&cursor={cursor}")).await;
    assert_eq!(ids(&last), newest_first[2..]);
    assert_eq!(last["meta"]["cursor"], Value::Null);
    let query = format!("?client_id={}", second.client_id);
    assert_eq!(ids(&list(&deployment, &query).await), sent[1..2]);
    let acknowledged = list(&deployment, "?state=acknowledged&directive=echo").await;
    assert_eq!(ids(&acknowledged), newest_first);
    for empty in [
        "?state=failed",
        "?directive=other",
        "?client_id=unknown",
        "?client_id=a%2Fb",
        "?created_after=2999-01-01T00:00:00Z",
    ] {
        let page = list(&deployment, empty).await;
        assert_eq!(page["data"], json!([]), "{empty}");
        assert_eq!(page["meta"]["cursor"], Value::Null, "{empty}");
    }
    let created_after = "?created_after=2020-01-01T00:00:00Z";
    assert_eq!(ids(&list(&deployment, created_after).await), newest_first);
}

async fn invalid_requests_name_the_field(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let client_id = &receiver.client_id;
    let detail_of = async |request: reqwest::RequestBuilder| {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 400);
        let body: Value = response.json().await.unwrap();
        body["detail"].as_str().unwrap().to_owned()
    };
    for (path, name) in [
        ("/v2/messages?states=failed", "states"),
        ("/v2/messages?state=done", "state"),
        ("/v2/messages?created_after=yesterday", "created_after"),
        ("/v2/messages?cursor=x", "cursor"),
        (&format!("/v2/messages/{UNKNOWN_ID}?expand=1"), "expand"),
    ] {
        let detail = detail_of(deployment.request("GET", path)).await;
        assert!(detail.contains(name), "{path}: {detail}");
    }
    let path = format!("/v2/messages/{UNKNOWN_ID}?force=1");
    let detail = detail_of(deployment.request("DELETE", &path)).await;
    assert!(detail.contains("force"), "{detail}");
    let path = format!("/v2/connections/{client_id}/message");
    for (body, name) in [
        (json!({"directive": "echo", "track": "yes"}), "track"),
        (json!({"directive": "echo", "queue": {"ttl": 5}}), "queue"),
    ] {
        let detail = detail_of(deployment.request("POST", &path).json(&body)).await;
        assert!(detail.contains(name), "{body}: {detail}");
    }
    let account = v1_headers();
    for name in ["track", "queue"] {
        let mut body = json!({"account": "1", "recipient": client_id, "directive": "echo"});
        body[name] = json!(true);
        let request = deployment.request("POST", "/v1/message");
        let detail = detail_of(request.headers(account.clone()).json(&body)).await;
        assert!(detail.contains(name), "{detail}");
    }
    let count = deployment.count_rows("SELECT count(*) FROM messages").await;
    assert_eq!(count, 0);
}

/// Returns the headers that a v1 caller sends in addition.
fn v1_headers() -> HeaderMap {
    let name = HeaderName::from_static("x-rh-cloud-connector-account");
    HeaderMap::from_iter([(name, HeaderValue::from_static("1"))])
}

async fn message_that_is_not_queued_cannot_be_cancelled(deployment: Deployment) {
    let receiver = Receiver::connect(&deployment).await;
    let id = receiver.send_tracked(&deployment).await;
    let request = deployment.request("DELETE", &format!("/v2/messages/{id}"));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 409);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["state"], "acknowledged");
    assert_eq!(body["status"], 409);
}

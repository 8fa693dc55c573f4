//! Tests that the connector registers catalog proxies with the sources service if `sources.url` is
//! set.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde_json::{Value, json};

use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Deployment, eventually, unique_id};

/// Metric that counts the outcomes of registrations. A registration that was already sent has the
/// outcome `cached`.
const REGISTRATIONS_METRIC: &str = "cloud_connector_sources_registrations_total";

/// The requests that the fake sources service has received.
#[derive(Default)]
struct ReceivedRequests {
    /// Number of requests that look for an existing source. Each registration starts with
    /// such a request.
    lookup_count: usize,
    /// Identity header and body of each bulk create request.
    registrations: Vec<(String, Value)>,
}

type SharedRequests = Arc<Mutex<ReceivedRequests>>;

/// Starts a fake of the external sources service. The fake contains no sources yet. Returns the URL
/// of the fake, and the requests that the fake receives.
async fn start_fake_sources() -> (String, SharedRequests) {
    let requests = SharedRequests::default();
    let router = Router::new()
        .route("/api/sources/v3.0/sources", get(handle_lookup))
        .route("/api/sources/v3.1/bulk_create", post(handle_bulk_create))
        .with_state(requests.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, requests)
}

async fn handle_lookup(State(requests): State<SharedRequests>) -> &'static str {
    requests.lock().lookup_count += 1;
    r#"{"data": []}"#
}

async fn handle_bulk_create(
    State(requests): State<SharedRequests>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let identity = headers["x-rh-identity"].to_str().unwrap().to_owned();
    let body = serde_json::from_slice(&body).unwrap();
    requests.lock().registrations.push((identity, body));
    StatusCode::CREATED
}

/// Connects a client and publishes `count` different online messages. The dispatcher `catalog`
/// contains the source of a catalog proxy.
async fn publish_online_messages_of_a_proxy(
    deployment: &Deployment,
    client_id: &str,
    source_ref: &str,
    count: usize,
) {
    let connect = Connect::new(client_id);
    let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    for _ in 0..count {
        let mut online = online_message();
        online["content"]["dispatchers"] = json!({"catalog": {
            "ApplicationType": "/insights/platform/catalog",
            "SrcName": "tower one", "SourceRef": source_ref, "SrcType": "ansible-tower"}});
        client
            .must_publish(&control_out_topic(client_id), &online)
            .await;
    }
}

#[tokio::test]
async fn a_catalog_proxy_is_registered_once_and_a_host_is_not_registered() {
    let (url, requests) = start_fake_sources().await;
    let deployment = Deployment::embedded(&[("sources.url", &url)]).await;
    let (proxy_id, host_id) = (unique_id("catalog"), unique_id("host"));
    let last_proxy_id = unique_id("last-catalog");
    let mut host = RawClient::connect(&deployment.mqtt_address(), &Connect::new(&host_id)).await;
    host.must_publish(&control_out_topic(&host_id), &online_message())
        .await;
    publish_online_messages_of_a_proxy(&deployment, &proxy_id, "ref-1", 3).await;
    // The connector starts registrations in the order of the online messages. When the
    // registration of this proxy has ended, all earlier registrations have at least started, and
    // have increased `lookup_count`.
    publish_online_messages_of_a_proxy(&deployment, &last_proxy_id, "ref-2", 1).await;
    eventually("the outcome of four registrations", || async {
        let outcome_count = deployment.read_metric(REGISTRATIONS_METRIC, "").await;
        (outcome_count > 3.5).then_some(())
    })
    .await;
    let created = deployment
        .read_metric(REGISTRATIONS_METRIC, "created")
        .await;
    let cached = deployment.read_metric(REGISTRATIONS_METRIC, "cached").await;
    let requests = requests.lock();
    let mut receptor_nodes: Vec<&str> = requests
        .registrations
        .iter()
        .map(|(_, body)| body["endpoints"][0]["receptor_node"].as_str().unwrap())
        .collect();
    receptor_nodes.sort_unstable();
    // `catalog` sorts before `last-catalog`.
    assert_eq!(receptor_nodes, [&proxy_id, &last_proxy_id]);
    assert_eq!(requests.lookup_count, 2);
    assert_eq!(
        format!("{created} created, {cached} cached"),
        "2 created, 2 cached"
    );
    let is_of_proxy = |body: &Value| body["endpoints"][0]["receptor_node"] == proxy_id.as_str();
    let mut registrations = requests.registrations.iter();
    let (identity, body) = registrations.find(|(_, body)| is_of_proxy(body)).unwrap();
    assert!(!identity.is_empty());
    assert_eq!(body["sources"][0]["source_ref"], "ref-1");
}

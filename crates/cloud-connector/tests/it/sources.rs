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

/// Identity header and body of each bulk create request that the fake has received.
type Registrations = Arc<Mutex<Vec<(String, Value)>>>;

/// Starts a fake of the external sources service. The fake contains no sources yet. Returns the URL
/// of the fake, and the list of registrations that the fake receives.
async fn start_fake_sources() -> (String, Registrations) {
    let registrations = Registrations::default();
    let router = Router::new()
        .route("/api/sources/v3.0/sources", get(async || r#"{"data": []}"#))
        .route("/api/sources/v3.1/bulk_create", post(handle_bulk_create))
        .with_state(registrations.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, registrations)
}

async fn handle_bulk_create(
    State(registrations): State<Registrations>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let identity = headers["x-rh-identity"].to_str().unwrap().to_owned();
    let body = serde_json::from_slice(&body).unwrap();
    registrations.lock().push((identity, body));
    StatusCode::CREATED
}

#[tokio::test]
async fn a_catalog_proxy_is_registered_once_and_a_host_is_not_registered() {
    let (url, registrations) = start_fake_sources().await;
    let deployment = Deployment::embedded(&[("sources.url", &url)]).await;
    let (proxy_id, host_id) = (unique_id("catalog"), unique_id("host"));
    let address = deployment.mqtt_address();
    let mut client = RawClient::connect(&address, &Connect::new(&host_id)).await;
    client
        .must_publish(&control_out_topic(&host_id), &online_message())
        .await;
    let mut client = RawClient::connect(&address, &Connect::new(&proxy_id)).await;
    let mut proxy_online = online_message();
    proxy_online["content"]["dispatchers"] = json!({"catalog": {
        "ApplicationType": "/insights/platform/catalog",
        "SrcName": "tower one", "SourceRef": "ref-1", "SrcType": "ansible-tower"}});
    for _ in 0..3 {
        proxy_online["message_id"] = json!(unique_id("m"));
        client
            .must_publish(&control_out_topic(&proxy_id), &proxy_online)
            .await;
    }
    eventually("the registration", || async {
        (!registrations.lock().is_empty()).then_some(())
    })
    .await;
    let (identity, body) = registrations.lock()[0].clone();
    assert!(!identity.is_empty());
    assert_eq!(body["sources"][0]["source_ref"], "ref-1");
    assert_eq!(body["endpoints"][0]["receptor_node"], proxy_id.as_str());
    let registrations_metric = deployment
        .read_metric("cloud_connector_sources_registrations_total", "")
        .await;
    assert_eq!(
        registrations.lock().len(),
        1,
        "the metric value is {registrations_metric}"
    );
}

//! Catalog proxies are registered with the sources service, where a deployment wants it.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, eventually, unique};

type Heard = Arc<Mutex<Vec<(String, Value)>>>;

/// A sources service that knows nobody. It is not ours, so it may be made up.
async fn service() -> (String, Heard) {
    let heard = Heard::default();
    let router = Router::new()
        .route("/api/sources/v3.0/sources", get(async || r#"{"data": []}"#))
        .route("/api/sources/v3.1/bulk_create", post(bulk_create))
        .with_state(heard.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, heard)
}

async fn bulk_create(State(heard): State<Heard>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let identity = headers["x-rh-identity"].to_str().unwrap().to_owned();
    let body = serde_json::from_slice(&body).unwrap();
    heard.lock().push((identity, body));
    StatusCode::CREATED
}

#[tokio::test]
async fn a_catalog_proxy_is_registered_once_and_others_are_not() {
    let (url, heard) = service().await;
    let subject = Deployment::embedded(&[("sources.url", &url)]).await;
    let (me, other) = (unique("catalog"), unique("other"));
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&other)).await;
    client.must_publish(&control_out(&other), &online()).await;
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    let mut proxy = online();
    proxy["content"]["dispatchers"] = json!({"catalog": {"ApplicationType": "/insights/platform/catalog",
        "SrcName": "tower one", "SourceRef": "ref-1", "SrcType": "ansible-tower"}});
    for _ in 0..3 {
        proxy["message_id"] = json!(unique("m"));
        client.must_publish(&control_out(&me), &proxy).await;
    }
    eventually("it is registered", || async {
        (!heard.lock().is_empty()).then_some(())
    })
    .await;
    let (identity, body) = heard.lock()[0].clone();
    assert!(!identity.is_empty());
    assert_eq!(body["sources"][0]["source_ref"], "ref-1");
    assert_eq!(body["endpoints"][0]["receptor_node"], me.as_str());
    let remembered = subject
        .metric("cloud_connector_sources_registrations_total", "")
        .await;
    assert_eq!(heard.lock().len(), 1, "{remembered}");
}

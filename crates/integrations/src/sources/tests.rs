use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::client::*;
use super::registration_queue::*;
use domain::{ClientId, ClientInfo, ClientKind, Identity, OrgId, Tenant};
use service::TaskGroup;

/// Method, path with query, and body of a request.
type Request = (String, String, String);

#[derive(Default)]
struct ServerState {
    /// Status and body of the response to list requests.
    list_response: (u16, String),
    /// Status and body of the response to create requests.
    create_response: (u16, String),
    /// Number of requests that the server still answers with status 503.
    remaining_failures: usize,
    response_delay: Duration,
    requests: Vec<Request>,
    request_headers: Vec<HeaderMap>,
    requests_in_flight: usize,
    max_requests_in_flight: usize,
}

/// An HTTP server with fixed responses that stores the requests.
struct FakeSources {
    url: String,
    state: Arc<Mutex<ServerState>>,
    server: tokio::task::JoinHandle<()>,
}

impl FakeSources {
    async fn start(list_response: (u16, &str), create_response: (u16, &str)) -> Self {
        let state = Arc::new(Mutex::new(ServerState {
            list_response: (list_response.0, list_response.1.to_owned()),
            create_response: (create_response.0, create_response.1.to_owned()),
            ..ServerState::default()
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .fallback(handle_request)
            .with_state(state.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state, server }
    }

    fn sources_client(&self) -> SourcesClient {
        SourcesClient::new(&self.url, Duration::from_secs(5)).unwrap()
    }

    async fn register(&self) -> RegistrationOutcome {
        let client = client("c");
        self.sources_client()
            .register(&identity("1"), &source("r&f =/é"), &client)
            .await
    }

    /// Queues one registration per client and organization, and waits until all registrations are
    /// processed.
    async fn register_clients(&self, clients: &[(&str, &str)], retry_delays: &[Duration]) {
        let (registrar, queue) = SourceRegistrar::channel();
        for (name, org) in clients {
            assert!(registrar.try_register(&identity(org), source("r"), &client(name)));
        }
        drop(registrar);
        process_registrations_with_delays(
            queue,
            self.sources_client(),
            TaskGroup::new(),
            retry_delays,
        )
        .await;
    }

    /// Returns the method and path of each request.
    fn requests(&self) -> Vec<String> {
        let state = self.state.lock();
        let requests = state.requests.iter();
        requests
            .map(|(method, path, _)| format!("{method} {path}"))
            .collect()
    }
}

impl Drop for FakeSources {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn handle_request(
    State(state): State<Arc<Mutex<ServerState>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, String) {
    let (delay, (status, text)) = {
        let mut state = state.lock();
        state
            .requests
            .push((method.to_string(), uri.to_string(), body));
        state.request_headers.push(headers);
        state.requests_in_flight += 1;
        state.max_requests_in_flight = state.max_requests_in_flight.max(state.requests_in_flight);
        let response = if state.remaining_failures > 0 {
            state.remaining_failures -= 1;
            (503, String::new())
        } else if method == Method::GET {
            state.list_response.clone()
        } else {
            state.create_response.clone()
        };
        (state.response_delay, response)
    };
    tokio::time::sleep(delay).await;
    state.lock().requests_in_flight -= 1;
    (StatusCode::from_u16(status).unwrap(), text)
}

const EMPTY_LIST: (u16, &str) = (200, r#"{"meta": {"count": 0}, "data": []}"#);
const LIST_WITH_SOURCE: (u16, &str) = (200, r#"{"meta": {"count": 1}, "data": [{"id": "7"}]}"#);
const CREATED_RESPONSE: (u16, &str) = (201, "{}");
const LIST_REQUEST: &str = "GET /api/sources/v3.0/sources?source_ref=r";
const CREATE_REQUEST: &str = "POST /api/sources/v3.1/bulk_create";

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn identity(org: &str) -> Identity {
    Identity::for_tenant(&Tenant {
        org_id: OrgId::new(org).unwrap(),
        account: "42".to_owned(),
    })
}

fn source(source_ref: &str) -> Source {
    Source {
        source_ref: source_ref.to_owned(),
        display_name: "tower".to_owned(),
        source_type: "ansible-tower".to_owned(),
        application_type: "/insights/platform/catalog".to_owned(),
    }
}

fn client_info(dispatchers: Value, facts: Value) -> ClientInfo {
    ClientInfo {
        catalog_service_facts: facts,
        dispatchers,
        ..ClientInfo::default()
    }
}

fn catalog_dispatcher() -> Value {
    json!({"ApplicationType": "/insights/platform/catalog", "SrcName": "tower",
        "SourceRef": "r", "SrcType": "ansible-tower", "Else": 1})
}

#[test]
fn status_client_with_a_complete_catalog_dispatcher_is_a_source() {
    let source_from = |dispatchers: Value, kind| {
        let info = client_info(dispatchers, Value::Null);
        catalog_source(&client("c"), &protocol::status::NAME, kind, &info)
    };
    let complete = json!({"catalog": catalog_dispatcher(), "echo": {}});
    assert_eq!(source_from(complete, ClientKind::Host), Some(source("r")));
    for key in ["ApplicationType", "SrcName", "SourceRef", "SrcType"] {
        for invalid_value in [
            Value::Null,
            json!(1),
            json!({}),
            json!(" "),
            json!("x".repeat(1025)),
        ] {
            let mut dispatcher = catalog_dispatcher();
            dispatcher[key] = invalid_value.clone();
            let found = source_from(json!({ "catalog": dispatcher }), ClientKind::Host);
            assert_eq!(found, None, "{key} {invalid_value}");
        }
        let mut dispatcher = catalog_dispatcher();
        dispatcher.as_object_mut().unwrap().remove(key);
        assert_eq!(
            source_from(json!({ "catalog": dispatcher }), ClientKind::Host),
            None,
            "{key}"
        );
    }
    for dispatchers in [
        Value::Null,
        json!({}),
        json!({"catalog": null}),
        json!({"catalogs": catalog_dispatcher()}),
    ] {
        assert_eq!(source_from(dispatchers, ClientKind::Host), None);
    }
}

#[test]
fn handshake_proxy_is_a_source_named_by_its_client_id() {
    let facts = json!({"source_type": "satellite", "application_type": "catalog"});
    let info = client_info(json!({"catalog": catalog_dispatcher()}), facts);
    let source_from = |kind| catalog_source(&client("c"), &protocol::handshake::NAME, kind, &info);
    let expected = Source {
        source_ref: "c".to_owned(),
        display_name: "c".to_owned(),
        source_type: "satellite".to_owned(),
        application_type: "catalog".to_owned(),
    };
    assert_eq!(source_from(ClientKind::Proxy), Some(expected));
    assert_eq!(source_from(ClientKind::Host), None);
}

#[test]
fn bulk_create_body_has_source_application_and_endpoint() {
    let text = String::from_utf8(bulk_create_body(&source("r"), &client("c"))).unwrap();
    insta::assert_snapshot!(text, @r#"{"sources":[{"source_ref":"r","name":"tower","source_type_name":"ansible-tower"}],"applications":[{"source_name":"tower","application_type_name":"/insights/platform/catalog"}],"endpoints":[{"source_name":"tower","receptor_node":"c"}]}"#);
}

#[tokio::test]
async fn existing_source_is_not_created() {
    let fake = FakeSources::start(LIST_WITH_SOURCE, CREATED_RESPONSE).await;
    assert_eq!(fake.register().await, RegistrationOutcome::AlreadyExists);
    let list_request = "GET /api/sources/v3.0/sources?source_ref=r%26f+%3D%2F%C3%A9";
    assert_eq!(fake.requests(), [list_request]);
}

#[tokio::test]
async fn missing_source_is_created_with_the_clients_identity() {
    let fake = FakeSources::start(EMPTY_LIST, CREATED_RESPONSE).await;
    assert_eq!(fake.register().await, RegistrationOutcome::Created);
    assert_eq!(fake.requests()[1], CREATE_REQUEST);
    let state = fake.state.lock();
    let body = bulk_create_body(&source("r&f =/é"), &client("c"));
    assert_eq!(state.requests[1].2.as_bytes(), body);
    assert_eq!(state.request_headers[1]["content-type"], "application/json");
    for headers in &state.request_headers {
        assert_eq!(headers["x-rh-identity"], identity("1").to_base64());
        let id = &headers["x-rh-insights-request-id"];
        assert_eq!(id.len(), 32);
        assert_eq!(id, state.request_headers[0]["x-rh-insights-request-id"]);
    }
}

#[tokio::test]
async fn rejection_text_is_truncated_to_1_kib() {
    let body = "é".repeat(2000);
    let fake = FakeSources::start(EMPTY_LIST, (400, &body)).await;
    assert_eq!(
        fake.register().await,
        RegistrationOutcome::Rejected("é".repeat(512))
    );
}

#[tokio::test]
async fn unexpected_responses_are_failures_and_create_nothing() {
    let empty_list = EMPTY_LIST.1;
    for list_response in [
        (500, empty_list),
        (401, empty_list),
        (200, "<html>"),
        (200, "{}"),
        (200, r#"{"data": {}}"#),
    ] {
        let fake = FakeSources::start(list_response, CREATED_RESPONSE).await;
        let outcome = fake.register().await;
        assert!(
            matches!(outcome, RegistrationOutcome::Failed(_)),
            "{list_response:?}: {outcome:?}"
        );
        assert_eq!(fake.requests().len(), 1, "{list_response:?}");
    }
    for status in [200, 401, 409, 500, 503] {
        let fake = FakeSources::start(EMPTY_LIST, (status, "")).await;
        let outcome = fake.register().await;
        assert!(
            matches!(outcome, RegistrationOutcome::Failed(_)),
            "{status}: {outcome:?}"
        );
    }
    let unreachable = SourcesClient::new("http://127.0.0.1:1", Duration::from_secs(5)).unwrap();
    let outcome = unreachable
        .register(&identity("1"), &source("r"), &client("c"))
        .await;
    let RegistrationOutcome::Failed(reason) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(!reason.contains("127.0.0.1:1/"), "{reason}");
}

#[tokio::test]
async fn created_and_rejected_sources_are_cached_per_client_and_organization() {
    for create_response in [CREATED_RESPONSE, (400, "no")] {
        let fake = FakeSources::start(EMPTY_LIST, create_response).await;
        fake.register_clients(&[("c", "1"), ("c", "1"), ("c", "1")], &[])
            .await;
        assert_eq!(
            fake.requests(),
            [LIST_REQUEST, CREATE_REQUEST],
            "{create_response:?}"
        );
        fake.state.lock().requests.clear();
        fake.register_clients(&[("c", "1"), ("d", "1"), ("c", "2")], &[])
            .await;
        assert_eq!(fake.requests().len(), 6, "{create_response:?}");
    }
}

#[tokio::test]
async fn failures_are_retried_and_rejections_are_not() {
    let retry_delays = [Duration::from_millis(1); 2];
    let fake = FakeSources::start(EMPTY_LIST, CREATED_RESPONSE).await;
    fake.state.lock().remaining_failures = 2;
    fake.register_clients(&[("c", "1")], &retry_delays).await;
    assert_eq!(
        fake.requests(),
        [LIST_REQUEST, LIST_REQUEST, LIST_REQUEST, CREATE_REQUEST]
    );
    let fake = FakeSources::start(EMPTY_LIST, (400, "no")).await;
    fake.register_clients(&[("c", "1")], &retry_delays).await;
    assert_eq!(fake.requests(), [LIST_REQUEST, CREATE_REQUEST]);
    let fake = FakeSources::start((503, ""), CREATED_RESPONSE).await;
    fake.register_clients(&[("c", "1")], &retry_delays).await;
    assert_eq!(fake.requests(), [LIST_REQUEST, LIST_REQUEST, LIST_REQUEST]);
}

#[tokio::test]
async fn failed_registration_is_not_cached() {
    let fake = FakeSources::start(EMPTY_LIST, CREATED_RESPONSE).await;
    fake.state.lock().remaining_failures = 1;
    let (registrar, queue) = SourceRegistrar::channel();
    let (sources, tasks) = (fake.sources_client(), TaskGroup::new());
    let processing =
        tokio::spawn(
            async move { process_registrations_with_delays(queue, sources, tasks, &[]).await },
        );
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while fake.requests().len() < 3 && tokio::time::Instant::now() < deadline {
        registrar.try_register(&identity("1"), source("r"), &client("c"));
        tokio::task::yield_now().await;
    }
    drop(registrar);
    processing.await.unwrap();
    assert_eq!(
        fake.requests(),
        [LIST_REQUEST, LIST_REQUEST, CREATE_REQUEST]
    );
}

#[tokio::test]
async fn concurrent_registrations_are_limited() {
    let fake = FakeSources::start(LIST_WITH_SOURCE, CREATED_RESPONSE).await;
    fake.state.lock().response_delay = Duration::from_millis(20);
    let names: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
    let clients: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    fake.register_clients(&clients, &[]).await;
    assert_eq!(fake.requests().len(), 40);
    let max_requests_in_flight = fake.state.lock().max_requests_in_flight;
    assert!(
        (2..=8).contains(&max_requests_in_flight),
        "{max_requests_in_flight}"
    );
}

#[tokio::test]
async fn registrations_beyond_the_queue_capacity_are_dropped() {
    let (registrar, queue) = SourceRegistrar::channel();
    let register = || registrar.try_register(&identity("1"), source("r"), &client("c"));
    assert!((0..1000).all(|_| register()));
    assert!(!register());
    drop(queue);
    assert!(!register());
}

#[tokio::test]
async fn shutdown_does_not_wait_for_the_sources_service() {
    let fake = FakeSources::start(LIST_WITH_SOURCE, CREATED_RESPONSE).await;
    fake.state.lock().response_delay = Duration::from_mins(1);
    let (registrar, queue) = SourceRegistrar::channel();
    assert!(registrar.try_register(&identity("1"), source("r"), &client("c")));
    let tasks = TaskGroup::new();
    tasks.spawn_essential(
        "source_registrations",
        process_registrations(queue, fake.sources_client(), tasks.clone()),
    );
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while fake.requests().is_empty() && tokio::time::Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    assert!(tasks.stop(Duration::from_secs(2)).await);
}

#[test]
fn invalid_url_error_names_the_setting_and_an_example() {
    for invalid_url in [
        "sources",
        "ftp://sources",
        "http://",
        "http://a/?b",
        "http://a/#b",
    ] {
        let text = SourcesClient::new(invalid_url, Duration::from_secs(1))
            .err()
            .unwrap()
            .to_string();
        assert!(text.contains("sources.url"), "{text}");
        assert!(text.contains("example: "), "{text}");
    }
    let client = SourcesClient::new("https://a/b/", Duration::from_secs(1)).unwrap();
    let list_url = "https://a/b/api/sources/v3.0/sources";
    assert_eq!(client.list_url.as_str(), list_url);
}

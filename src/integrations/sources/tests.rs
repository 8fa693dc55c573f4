use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::client::*;
use super::registration_queue::*;
use crate::domain::{ClientId, ClientInfo, ClientKind, Dialect, Identity, OrgId, Tenant};
use crate::shutdown::TaskGroup;

/// What was asked: method, path with query, body.
type Asked = (String, String, String);

#[derive(Default)]
struct Book {
    /// What it says to the list and to the creation.
    list: (u16, String),
    create: (u16, String),
    /// So many requests are answered with 503 first.
    ailing: usize,
    delay: Duration,
    asked: Vec<Asked>,
    headers: Vec<HeaderMap>,
    busy: usize,
    busiest: usize,
}

struct Fake {
    url: String,
    book: Arc<Mutex<Book>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Fake {
    async fn start(list: (u16, &str), create: (u16, &str)) -> Self {
        let book = Arc::new(Mutex::new(Book {
            list: (list.0, list.1.to_owned()),
            create: (create.0, create.1.to_owned()),
            ..Book::default()
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(book.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, book, serving }
    }

    fn sources(&self) -> Sources {
        Sources::new(&self.url, Duration::from_secs(5)).unwrap()
    }

    async fn register(&self) -> Outcome {
        let client = client("c");
        self.sources()
            .register(&identity("1"), &source("r&f =/é"), &client)
            .await
    }

    /// Registers these for one client each, one line after the other, until all are done.
    async fn run(&self, orders: &[(&str, &str)], again: &[Duration]) {
        let (registrar, waiting) = SourceRegistrar::channel();
        for (name, org) in orders {
            assert!(registrar.try_register(&identity(org), source("r"), &client(name)));
        }
        drop(registrar);
        run_with(waiting, self.sources(), TaskGroup::new(), again).await;
    }

    fn asked(&self) -> Vec<String> {
        let book = self.book.lock();
        let asked = book.asked.iter();
        asked
            .map(|(method, path, _)| format!("{method} {path}"))
            .collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    State(book): State<Arc<Mutex<Book>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, String) {
    let (delay, (status, text)) = {
        let mut book = book.lock();
        book.asked.push((method.to_string(), uri.to_string(), body));
        book.headers.push(headers);
        book.busy += 1;
        book.busiest = book.busiest.max(book.busy);
        let says = if book.ailing > 0 {
            book.ailing -= 1;
            (503, String::new())
        } else if method == Method::GET {
            book.list.clone()
        } else {
            book.create.clone()
        };
        (book.delay, says)
    };
    tokio::time::sleep(delay).await;
    book.lock().busy -= 1;
    (StatusCode::from_u16(status).unwrap(), text)
}

const NONE: (u16, &str) = (200, r#"{"meta": {"count": 0}, "data": []}"#);
const ONE: (u16, &str) = (200, r#"{"meta": {"count": 1}, "data": [{"id": "7"}]}"#);
const MADE: (u16, &str) = (201, "{}");
const LIST: &str = "GET /api/sources/v3.0/sources?source_ref=r";
const CREATE: &str = "POST /api/sources/v3.1/bulk_create";

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn identity(org: &str) -> Identity {
    Identity::made_for(&Tenant {
        org_id: OrgId::new(org).unwrap(),
        account: "42".to_owned(),
    })
}

fn source(source_ref: &str) -> Source {
    Source {
        source_ref: source_ref.to_owned(),
        name: "tower".to_owned(),
        source_type: "ansible-tower".to_owned(),
        application_type: "/insights/platform/catalog".to_owned(),
    }
}

fn reported(dispatchers: Value, facts: Value) -> ClientInfo {
    ClientInfo {
        canonical_facts: json!({}),
        catalog_service_facts: facts,
        dispatchers,
        tags: Value::Null,
        client_name: String::new(),
        client_version: String::new(),
    }
}

fn worker() -> Value {
    json!({"ApplicationType": "/insights/platform/catalog", "SrcName": "tower",
        "SourceRef": "r", "SrcType": "ansible-tower", "Else": 1})
}

#[test]
fn a_catalog_worker_that_says_it_all_is_a_source() {
    let of = |dispatchers: Value, kind| {
        let reported = reported(dispatchers, Value::Null);
        source_of(&client("c"), Dialect::Status, kind, &reported)
    };
    let whole = json!({"catalog": worker(), "echo": {}});
    assert_eq!(of(whole, ClientKind::Host), Some(source("r")));
    for key in ["ApplicationType", "SrcName", "SourceRef", "SrcType"] {
        for bad in [
            Value::Null,
            json!(1),
            json!({}),
            json!(" "),
            json!("x".repeat(1025)),
        ] {
            let mut worker = worker();
            worker[key] = bad.clone();
            let found = of(json!({ "catalog": worker }), ClientKind::Host);
            assert_eq!(found, None, "{key} {bad}");
        }
        let mut worker = worker();
        worker.as_object_mut().unwrap().remove(key);
        assert_eq!(
            of(json!({ "catalog": worker }), ClientKind::Host),
            None,
            "{key}"
        );
    }
    for none in [
        Value::Null,
        json!({}),
        json!({"catalog": null}),
        json!({"catalogs": worker()}),
    ] {
        assert_eq!(of(none, ClientKind::Host), None);
    }
}

#[test]
fn a_proxy_handshake_is_a_source_by_the_name_of_its_client() {
    let facts = json!({"source_type": "satellite", "application_type": "catalog"});
    let reported = reported(json!({"catalog": worker()}), facts);
    let of = |kind| source_of(&client("c"), Dialect::Handshake, kind, &reported);
    let expected = Source {
        source_ref: "c".to_owned(),
        name: "c".to_owned(),
        source_type: "satellite".to_owned(),
        application_type: "catalog".to_owned(),
    };
    assert_eq!(of(ClientKind::Proxy), Some(expected));
    assert_eq!(of(ClientKind::Host), None);
}

#[test]
fn a_source_is_made_with_its_application_and_endpoint() {
    let text = String::from_utf8(bulk_create(&source("r"), &client("c"))).unwrap();
    insta::assert_snapshot!(text, @r#"{"sources":[{"source_ref":"r","name":"tower","source_type_name":"ansible-tower"}],"applications":[{"source_name":"tower","application_type_name":"/insights/platform/catalog"}],"endpoints":[{"source_name":"tower","receptor_node":"c"}]}"#);
}

#[tokio::test]
async fn a_source_that_exists_is_not_made() {
    let fake = Fake::start(ONE, MADE).await;
    assert_eq!(fake.register().await, Outcome::Existed);
    let list = "GET /api/sources/v3.0/sources?source_ref=r%26f+%3D%2F%C3%A9";
    assert_eq!(fake.asked(), [list]);
}

#[tokio::test]
async fn a_source_that_does_not_exist_is_made_in_the_clients_name() {
    let fake = Fake::start(NONE, MADE).await;
    assert_eq!(fake.register().await, Outcome::Made);
    assert_eq!(fake.asked()[1], CREATE);
    let book = fake.book.lock();
    let body = bulk_create(&source("r&f =/é"), &client("c"));
    assert_eq!(book.asked[1].2.as_bytes(), body);
    assert_eq!(book.headers[1]["content-type"], "application/json");
    for headers in &book.headers {
        assert_eq!(headers["x-rh-identity"], identity("1").to_base64());
        let id = &headers["x-rh-insights-request-id"];
        assert_eq!(id.len(), 32);
        assert_eq!(id, book.headers[0]["x-rh-insights-request-id"]);
    }
}

#[tokio::test]
async fn a_refusal_is_kept_up_to_a_kibibyte() {
    let words = "é".repeat(2000);
    let fake = Fake::start(NONE, (400, &words)).await;
    assert_eq!(fake.register().await, Outcome::Refused("é".repeat(512)));
}

#[tokio::test]
async fn what_is_no_list_is_no_leave_to_make_a_source() {
    let good = NONE.1;
    for list in [
        (500, good),
        (401, good),
        (200, "<html>"),
        (200, "{}"),
        (200, r#"{"data": {}}"#),
    ] {
        let fake = Fake::start(list, MADE).await;
        let outcome = fake.register().await;
        assert!(
            matches!(outcome, Outcome::Failed(_)),
            "{list:?}: {outcome:?}"
        );
        assert_eq!(fake.asked().len(), 1, "{list:?}");
    }
    for status in [200, 401, 409, 500, 503] {
        let fake = Fake::start(NONE, (status, "")).await;
        let outcome = fake.register().await;
        assert!(
            matches!(outcome, Outcome::Failed(_)),
            "{status}: {outcome:?}"
        );
    }
    let nobody = Sources::new("http://127.0.0.1:1", Duration::from_secs(5)).unwrap();
    let outcome = nobody
        .register(&identity("1"), &source("r"), &client("c"))
        .await;
    let Outcome::Failed(why) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(!why.contains("127.0.0.1:1/"), "{why}");
}

#[tokio::test]
async fn what_was_made_or_refused_is_remembered_for_its_organisation() {
    for create in [MADE, (400, "no")] {
        let fake = Fake::start(NONE, create).await;
        fake.run(&[("c", "1"), ("c", "1"), ("c", "1")], &[]).await;
        assert_eq!(fake.asked(), [LIST, CREATE], "{create:?}");
        fake.book.lock().asked.clear();
        fake.run(&[("c", "1"), ("d", "1"), ("c", "2")], &[]).await;
        assert_eq!(fake.asked().len(), 6, "{create:?}");
    }
}

#[tokio::test]
async fn a_failure_is_tried_again_and_a_refusal_is_not() {
    let again = [Duration::from_millis(1); 2];
    let fake = Fake::start(NONE, MADE).await;
    fake.book.lock().ailing = 2;
    fake.run(&[("c", "1")], &again).await;
    assert_eq!(fake.asked(), [LIST, LIST, LIST, CREATE]);
    let fake = Fake::start(NONE, (400, "no")).await;
    fake.run(&[("c", "1")], &again).await;
    assert_eq!(fake.asked(), [LIST, CREATE]);
    let fake = Fake::start((503, ""), MADE).await;
    fake.run(&[("c", "1")], &again).await;
    assert_eq!(fake.asked(), [LIST, LIST, LIST]);
}

#[tokio::test]
async fn what_failed_is_registered_when_the_client_comes_back() {
    let fake = Fake::start(NONE, MADE).await;
    fake.book.lock().ailing = 1;
    let (registrar, waiting) = SourceRegistrar::channel();
    let (sources, stopper) = (fake.sources(), TaskGroup::new());
    let running = tokio::spawn(async move { run_with(waiting, sources, stopper, &[]).await });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while fake.asked().len() < 3 && tokio::time::Instant::now() < deadline {
        registrar.try_register(&identity("1"), source("r"), &client("c"));
        tokio::task::yield_now().await;
    }
    drop(registrar);
    running.await.unwrap();
    assert_eq!(fake.asked(), [LIST, LIST, CREATE]);
}

#[tokio::test]
async fn a_few_are_registered_at_a_time() {
    let fake = Fake::start(ONE, MADE).await;
    fake.book.lock().delay = Duration::from_millis(20);
    let names: Vec<String> = (0..40).map(|at| format!("c{at}")).collect();
    let orders: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    fake.run(&orders, &[]).await;
    assert_eq!(fake.asked().len(), 40);
    let busiest = fake.book.lock().busiest;
    assert!((2..=8).contains(&busiest), "{busiest}");
}

#[tokio::test]
async fn what_finds_the_line_full_is_dropped() {
    let (registrar, waiting) = SourceRegistrar::channel();
    let register = || registrar.try_register(&identity("1"), source("r"), &client("c"));
    assert!((0..1000).all(|_| register()));
    assert!(!register());
    drop(waiting);
    assert!(!register());
}

#[tokio::test]
async fn stopping_does_not_wait_for_the_service() {
    let fake = Fake::start(ONE, MADE).await;
    fake.book.lock().delay = Duration::from_mins(1);
    let (registrar, waiting) = SourceRegistrar::channel();
    assert!(registrar.try_register(&identity("1"), source("r"), &client("c")));
    let stopper = TaskGroup::new();
    stopper.spawn(run(waiting, fake.sources(), stopper.clone()));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while fake.asked().is_empty() && tokio::time::Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    assert!(stopper.stop(Duration::from_secs(2)).await);
}

#[test]
fn a_wrong_address_is_named_with_its_cure() {
    for bad in [
        "sources",
        "ftp://sources",
        "http://",
        "http://a/?b",
        "http://a/#b",
    ] {
        let text = Sources::new(bad, Duration::from_secs(1))
            .err()
            .unwrap()
            .to_string();
        assert!(text.contains("sources.url"), "{text}");
        assert!(text.contains("write it as"), "{text}");
    }
    let good = Sources::new("https://a/b/", Duration::from_secs(1)).unwrap();
    let list = "https://a/b/api/sources/v3.0/sources";
    assert_eq!(good.list_url.as_str(), list);
}

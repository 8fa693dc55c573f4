//! The REST interface as its callers know it, sentence by sentence, in both set-ups.

mod auth;
mod docs;
mod faults;
mod isolation;
mod list_and_search;
mod ping_and_check;
mod response_shapes;
#[cfg(feature = "external-services")]
mod schema;
mod transport;
mod v1;
mod v2;

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::support::deployment::Settings;
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, eventually, unique};

const SECRET: &str = "a-secret-of-the-caller";
const OPERATIONS: &str = "a-secret-of-operations";
/// Our organisation and account, and another.
const US: (&str, &str) = ("10001", "010101");
const THEM: (&str, &str) = ("10002", "020202");

/// A connector with clients of two organisations, one of nobody, and a Satellite server of theirs.
struct ApiFixture {
    subject: Deployment,
    ours: String,
    theirs: String,
    satellite: String,
    nobodys: String,
    /// The client that is ours; it listens on all of its topics.
    client: RawClient,
    _others: Vec<RawClient>,
    _files: tempfile::TempDir,
}

impl ApiFixture {
    async fn start(subject: Deployment, more: Settings<'_>) -> Self {
        Self::made(async |settings| subject.anew(settings).await, more).await
    }

    /// On a connector that is made with its settings.
    async fn made(make: impl AsyncFnOnce(Settings<'_>) -> Deployment, more: Settings<'_>) -> Self {
        let [ours, theirs, satellite, nobodys] =
            ["ours", "theirs", "satellite", "nobodys"].map(unique);
        let tenant = |(org, account)| json!({"orgId": org, "accountId": account});
        let tenants = json!({
            ours.as_str(): tenant(US),
            theirs.as_str(): tenant(THEM),
            satellite.as_str(): tenant(THEM),
            nobodys.as_str(): {"error": "no longer valid"},
        });
        let files = tempfile::tempdir().unwrap();
        let write = |name: &str, content: Value| {
            let path = files.path().join(name);
            std::fs::write(&path, content.to_string()).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let tenants = write("tenants.json", tenants);
        let accounts = write("accounts.json", json!({US.1: US.0, THEM.1: THEM.0}));
        let operations = format!(r#"{{ secrets = ["{OPERATIONS}"], scopes = ["management"] }}"#);
        let mut settings = vec![
            ("tenant.static_file", tenants.as_str()),
            ("tenant.translator_file", accounts.as_str()),
            ("api.keys.caller", SECRET),
            ("api.keys.operations", operations.as_str()),
        ];
        settings.extend(more);
        let subject = make(&settings).await;
        let client = arrive(&subject, &ours, "echo").await;
        let others = vec![
            arrive(&subject, &theirs, "echo").await,
            arrive(&subject, &satellite, "foreman_rh_cloud").await,
            arrive(&subject, &nobodys, "echo").await,
        ];
        Self {
            subject,
            ours,
            theirs,
            satellite,
            nobodys,
            client,
            _others: others,
            _files: files,
        }
    }

    /// A request of the second generation, for an organisation.
    fn v2(&self, org: &str, method: &str, path: &str) -> RequestBuilder {
        key(
            self.subject.bare(method, &format!("/v2{path}")),
            "caller",
            SECRET,
        )
        .header("x-rh-cloud-connector-org-id", org)
    }

    /// A request of the first generation, for an account.
    fn v1(&self, account: &str, path: &str, body: &Value) -> RequestBuilder {
        key(
            self.subject.bare("POST", &format!("/v1{path}")),
            "caller",
            SECRET,
        )
        .header("x-rh-cloud-connector-account", account)
        .json(body)
    }

    /// A request to a management endpoint.
    fn managed(&self, method: &str, path: &str) -> RequestBuilder {
        let request = self.subject.bare(method, &format!("/v1{path}"));
        key(request, "operations", OPERATIONS)
    }
}

fn key(request: RequestBuilder, caller: &str, secret: &str) -> RequestBuilder {
    request
        .header("x-rh-cloud-connector-client-id", caller)
        .header("x-rh-cloud-connector-psk", secret)
}

/// A client that listens, and has a row.
async fn arrive(subject: &Deployment, name: &str, worker: &str) -> RawClient {
    arrive_as(subject, &Connect::new(name), worker).await
}

async fn arrive_as(subject: &Deployment, connect: &Connect, worker: &str) -> RawClient {
    let name = &connect.client_id;
    let mut client = RawClient::connect(&subject.mqtt(), connect).await;
    for way in ["control", "data"] {
        client
            .subscribe(&format!("redhat/insights/{name}/{way}/in"))
            .await;
    }
    let mut said = online();
    said["content"]["dispatchers"] = json!({worker: {}});
    client.must_publish(&control_out(name), &said).await;
    eventually("its row", || subject.row(name)).await;
    client
}

/// The status and the body, which must be of the type that every answer has.
async fn answered(request: RequestBuilder) -> (u16, Value) {
    let (status, text) = text_of(request).await;
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
    (status, body)
}

async fn text_of(request: RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let kind = answer.headers().get("content-type").cloned();
    let text = answer.text().await.unwrap();
    if !text.is_empty() {
        let kind = kind.unwrap();
        assert_eq!(kind, "application/json; charset=UTF-8", "{status} {text}");
    }
    (status.as_u16(), text)
}

/// An error's status and title; it must be of the one shape.
async fn error(request: RequestBuilder) -> (u16, String) {
    let (status, body) = answered(request).await;
    assert!(status >= 400, "{status} {body}");
    assert_eq!(body["status"], status, "{body}");
    assert!(
        body["detail"].as_str().is_some_and(|text| !text.is_empty()),
        "{body}"
    );
    (status, body["title"].as_str().unwrap().to_owned())
}

/// The status and the text of an answer that is no JSON.
async fn plain(request: RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    let text = answer.text().await.unwrap();
    assert!(kind.starts_with("text/plain"), "{status} {kind} {text}");
    (status.as_u16(), text)
}

const OK: u16 = StatusCode::OK.as_u16();

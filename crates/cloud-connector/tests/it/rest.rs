//! Tests of the REST API in both deployment modes: authentication, endpoints, error responses,
//! isolation of organizations, and behavior during outages.

mod access_log;
mod auth;
mod auth_failures;
mod docs;
mod faults;
mod isolation;
mod list_and_search;
mod ping_and_check;
mod public_errors;
mod response_shapes;
mod schema;
mod transport;
mod v1;
mod v2;

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};

use test_support::deployment::Settings;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Deployment, DeploymentMode, eventually, unique_id};

/// Secret of the API key `caller`, which has the scope `tenant`.
const CALLER_SECRET: &str = "caller-secret-caller-secret";
/// Secret of the API key `operations`, which has the scope `management`.
const OPERATIONS_SECRET: &str = "operations-secret-operations";

/// The organization for which the tests send most requests.
const OWN_ORG: &str = "10001";
/// Account number of `OWN_ORG`.
const OWN_ACCOUNT: &str = "010101";
/// Another organization. Responses to requests for `OWN_ORG` must not contain its clients.
const OTHER_ORG: &str = "10002";
/// Account number of `OTHER_ORG`.
const OTHER_ACCOUNT: &str = "020202";

const OK: u16 = StatusCode::OK.as_u16();

/// A connector with four connected clients.
struct ApiFixture {
    deployment: Deployment,
    /// Id of the only client of `OWN_ORG`.
    own_org_client_id: String,
    /// Id of a client of `OTHER_ORG`.
    other_org_client_id: String,
    /// Id of a Satellite server of `OTHER_ORG`.
    satellite_id: String,
    /// Id of a client of `OTHER_ORG` that the fixture does not connect. This id sorts before
    /// `other_org_client_id`.
    unconnected_client_id: String,
    /// Id of a connected client without a tenant.
    tenantless_client_id: String,
    /// The MQTT client with the id `own_org_client_id`. It has subscribed to its control and data
    /// topics.
    own_client: RawClient,
    _other_clients: Vec<RawClient>,
    _temp_dir: tempfile::TempDir,
}

impl ApiFixture {
    /// Starts a deployment with the settings of the fixture and `extra_settings`, and connects the
    /// clients.
    async fn start(mode: DeploymentMode, extra_settings: Settings<'_>) -> Self {
        let create_deployment = async |settings: Settings<'_>| mode.start(settings).await;
        Self::start_with_new_deployment(create_deployment, extra_settings).await
    }

    /// Creates a deployment with the settings of the fixture and `extra_settings`, and connects the
    /// clients.
    async fn start_with_new_deployment(
        create_deployment: impl AsyncFnOnce(Settings<'_>) -> Deployment,
        extra_settings: Settings<'_>,
    ) -> Self {
        let [
            own_org_client_id,
            other_org_client_id,
            satellite_id,
            tenantless_client_id,
            unconnected_client_id,
        ] = ["own", "other", "satellite", "tenantless", "another"].map(unique_id);
        let own_tenant = json!({"orgId": OWN_ORG, "accountId": OWN_ACCOUNT});
        let other_tenant = json!({"orgId": OTHER_ORG, "accountId": OTHER_ACCOUNT});
        let tenants = json!({
            own_org_client_id.as_str(): own_tenant,
            other_org_client_id.as_str(): other_tenant,
            satellite_id.as_str(): other_tenant,
            unconnected_client_id.as_str(): other_tenant,
            tenantless_client_id.as_str(): {"error": "no longer valid"},
        });
        let temp_dir = tempfile::tempdir().unwrap();
        let write_json_file = |file_name: &str, content: Value| {
            let path = temp_dir.path().join(file_name);
            std::fs::write(&path, content.to_string()).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let tenants_file = write_json_file("tenants.json", tenants);
        let accounts = json!({OWN_ACCOUNT: OWN_ORG, OTHER_ACCOUNT: OTHER_ORG});
        let accounts_file = write_json_file("accounts.json", accounts);
        let operations_key =
            format!(r#"{{ secrets = ["{OPERATIONS_SECRET}"], scopes = ["management"] }}"#);
        let mut settings = vec![
            ("tenant.static_file", tenants_file.as_str()),
            ("tenant.translator_file", accounts_file.as_str()),
            ("api.keys.caller", CALLER_SECRET),
            ("api.keys.operations", operations_key.as_str()),
        ];
        settings.extend(extra_settings);
        let deployment = create_deployment(&settings).await;
        let own_client = connect_client(&deployment, &own_org_client_id, "echo").await;
        let other_clients = vec![
            connect_client(&deployment, &other_org_client_id, "echo").await,
            connect_client(&deployment, &satellite_id, "foreman_rh_cloud").await,
            connect_client(&deployment, &tenantless_client_id, "echo").await,
        ];
        Self {
            deployment,
            own_org_client_id,
            other_org_client_id,
            satellite_id,
            unconnected_client_id,
            tenantless_client_id,
            own_client,
            _other_clients: other_clients,
            _temp_dir: temp_dir,
        }
    }

    /// Builds a v2 request for an organization, with the API key `caller`.
    fn v2_request(&self, org: &str, method: &str, path: &str) -> RequestBuilder {
        let path = format!("/v2{path}");
        let request = self.deployment.unauthenticated_request(method, &path);
        with_api_key(request, "caller", CALLER_SECRET).header("x-rh-cloud-connector-org-id", org)
    }

    /// Builds a v1 POST request for an account, with the API key `caller`.
    fn v1_post_request(&self, account: &str, path: &str, body: &Value) -> RequestBuilder {
        let path = format!("/v1{path}");
        let request = self.deployment.unauthenticated_request("POST", &path);
        with_api_key(request, "caller", CALLER_SECRET)
            .header("x-rh-cloud-connector-account", account)
            .json(body)
    }

    /// Builds a request to a v1 management endpoint, with the API key `operations`.
    fn management_request(&self, method: &str, path: &str) -> RequestBuilder {
        let path = format!("/v1{path}");
        let request = self.deployment.unauthenticated_request(method, &path);
        with_api_key(request, "operations", OPERATIONS_SECRET)
    }
}

fn with_api_key(request: RequestBuilder, key_name: &str, secret: &str) -> RequestBuilder {
    request
        .header("x-rh-cloud-connector-client-id", key_name)
        .header("x-rh-cloud-connector-psk", secret)
}

/// Calls [`connect_client_with_options`] with default CONNECT options.
async fn connect_client(deployment: &Deployment, client_id: &str, dispatcher: &str) -> RawClient {
    connect_client_with_options(deployment, &Connect::new(client_id), dispatcher).await
}

/// Connects a client, subscribes it to its control and data topics, and publishes an online message
/// with one dispatcher. Returns when the database contains the client's row.
async fn connect_client_with_options(
    deployment: &Deployment,
    connect: &Connect,
    dispatcher: &str,
) -> RawClient {
    let client_id = &connect.client_id;
    let mut client = RawClient::connect(&deployment.mqtt_address(), connect).await;
    for channel in ["control", "data"] {
        client
            .subscribe(&format!("redhat/insights/{client_id}/{channel}/in"))
            .await;
    }
    let mut message = online_message();
    message["content"]["dispatchers"] = json!({dispatcher: {}});
    client
        .must_publish(&control_out_topic(client_id), &message)
        .await;
    eventually("the client's row", || deployment.row(client_id)).await;
    client
}

/// Sends the request. Returns the status and the JSON body.
async fn json_response(request: RequestBuilder) -> (u16, Value) {
    let (status, text) = json_text_response(request).await;
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
    (status, body)
}

/// Sends the request. Returns the status and the body, which must be empty or JSON.
async fn json_text_response(request: RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let content_type = response.headers().get("content-type").cloned();
    let text = response.text().await.unwrap();
    if !text.is_empty() {
        let content_type = content_type.unwrap();
        assert_eq!(
            content_type, "application/json; charset=UTF-8",
            "{status} {text}"
        );
    }
    (status.as_u16(), text)
}

/// Replaces the values of `connected_since` and `last_seen` in a JSON text with `[time]`.
fn without_times(json: &str) -> String {
    let mut text = json.to_owned();
    for field in [r#""connected_since":""#, r#""last_seen":""#] {
        let mut parts = text.split(field);
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (_, rest) = part.split_once('"').unwrap();
            replaced.extend([field, "[time]\"", rest]);
        }
        text = replaced;
    }
    text
}

/// Sends the request and checks that the response is an error envelope. Returns the status and the
/// title.
async fn error_response(request: RequestBuilder) -> (u16, String) {
    let (status, body) = json_response(request).await;
    assert!(status >= 400, "{status} {body}");
    assert_eq!(body["status"], status, "{body}");
    assert!(
        body["detail"].as_str().is_some_and(|text| !text.is_empty()),
        "{body}"
    );
    (status, body["title"].as_str().unwrap().to_owned())
}

/// Sends the request. Returns the status and the body, which must be plain text.
async fn plain_text_response(request: RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let content_type = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    let text = response.text().await.unwrap();
    assert!(
        content_type.starts_with("text/plain"),
        "{status} {content_type} {text}"
    );
    (status.as_u16(), text)
}

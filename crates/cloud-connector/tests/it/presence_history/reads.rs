//! Tests of the endpoints that read the presence history: details, history, search and diagnosis.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use test_support::mqtt::{Connect, RawClient, control_out_topic, offline_message, online_message};
use test_support::{Deployment, DeploymentMode, each_deployment, eventually, unique_id};

each_deployment!(
    details_contain_everything_that_is_stored_about_a_client,
    unknown_foreign_and_tenantless_clients_have_the_same_response,
    list_and_status_contain_times_and_version,
    history_rejects_unknown_parameters_and_invalid_cursors,
    clients_of_any_organization_are_found_by_their_fqdn,
    diagnosis_explains_connected_disconnected_tenantless_and_unknown_clients,
);

const TENANT_SECRET: &str = "tenant-secret-tenant-secret";
const MANAGEMENT_SECRET: &str = "management-secret-management";
const OWN_ORG: &str = "10001";
const OTHER_ORG: &str = "10002";

/// A deployment with a client of `OWN_ORG`, a client of `OTHER_ORG` and a tenantless client.
struct Fixture {
    deployment: Deployment,
    own_client_id: String,
    other_client_id: String,
    tenantless_client_id: String,
    own_client: RawClient,
    _other_clients: [RawClient; 2],
    _temp_dir: tempfile::TempDir,
}

impl Fixture {
    async fn start(mode: DeploymentMode) -> Self {
        let [own_client_id, other_client_id, tenantless_client_id] =
            ["own", "other", "tenantless"].map(unique_id);
        let temp_dir = tempfile::tempdir().unwrap();
        let tenants_file = temp_dir.path().join("tenants.json");
        let tenants = json!({
            own_client_id.as_str(): {"orgId": OWN_ORG, "accountId": "010101"},
            other_client_id.as_str(): {"orgId": OTHER_ORG, "accountId": "020202"},
            tenantless_client_id.as_str(): {"error": "no longer valid"},
        });
        std::fs::write(&tenants_file, tenants.to_string()).unwrap();
        let management_key =
            format!(r#"{{ secrets = ["{MANAGEMENT_SECRET}"], scopes = ["management"] }}"#);
        let settings = [
            ("tenant.static_file", tenants_file.to_str().unwrap()),
            ("api.keys.tenant", TENANT_SECRET),
            ("api.keys.management", management_key.as_str()),
        ];
        let deployment = mode.start(&settings).await;
        let own_client = connect(&deployment, &own_client_id).await;
        let other_clients = [
            connect(&deployment, &other_client_id).await,
            connect(&deployment, &tenantless_client_id).await,
        ];
        Self {
            deployment,
            own_client_id,
            other_client_id,
            tenantless_client_id,
            own_client,
            _other_clients: other_clients,
            _temp_dir: temp_dir,
        }
    }

    /// Builds a request for `OWN_ORG`.
    fn tenant_request(&self, path: &str) -> RequestBuilder {
        let request = self
            .deployment
            .unauthenticated_request("GET", &format!("/v2{path}"));
        with_key(request, "tenant", TENANT_SECRET).header("x-rh-cloud-connector-org-id", OWN_ORG)
    }

    fn management_request(&self, path: &str) -> RequestBuilder {
        let request = self
            .deployment
            .unauthenticated_request("GET", &format!("/v2{path}"));
        with_key(request, "management", MANAGEMENT_SECRET)
    }

    /// Returns the details of the client of `OWN_ORG`.
    async fn own_details(&self) -> Value {
        let path = format!("/connections/{}", self.own_client_id);
        json_response(self.tenant_request(&path)).await
    }

    async fn diagnosis(&self, client_id: &str) -> Value {
        let path = format!("/clients/{client_id}/diagnosis");
        json_response(self.management_request(&path)).await
    }

    /// Publishes an offline message of the client of `OWN_ORG`. Returns the details of the
    /// disconnected client.
    async fn disconnect_own_client(&mut self) -> Value {
        let topic = control_out_topic(&self.own_client_id);
        self.own_client
            .must_publish(&topic, &offline_message())
            .await;
        eventually("the details of the disconnected client", || async {
            let details = self.own_details().await;
            (details["status"] == "disconnected").then_some(details)
        })
        .await
    }
}

fn with_key(request: RequestBuilder, key_name: &str, secret: &str) -> RequestBuilder {
    request
        .header("x-rh-cloud-connector-client-id", key_name)
        .header("x-rh-cloud-connector-psk", secret)
}

fn fqdn(client_id: &str) -> String {
    format!("{client_id}.example")
}

/// Connects a client and publishes its online message. Returns when the database contains its row.
async fn connect(deployment: &Deployment, client_id: &str) -> RawClient {
    let connect = Connect::new(client_id).without_keep_alive();
    let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    let mut message = online_message();
    message["content"]["canonical_facts"] = json!({"fqdn": fqdn(client_id)});
    message["content"]["client_version"] = json!("1.2.3");
    client
        .must_publish(&control_out_topic(client_id), &message)
        .await;
    eventually("the client's row", || deployment.row(client_id)).await;
    client
}

async fn text_response(request: RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// Sends a request that must succeed. Returns the body.
async fn json_response(request: RequestBuilder) -> Value {
    let (status, body) = text_response(request).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[track_caller]
fn assert_is_recent(time: &Value) {
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    let age = jiff::Timestamp::now().duration_since(time).as_secs();
    assert!((0..300).contains(&age), "{time}");
}

async fn details_contain_everything_that_is_stored_about_a_client(mode: DeploymentMode) {
    let mut fixture = Fixture::start(mode).await;
    let mut connected = fixture.own_details().await;
    assert_is_recent(&connected["connected_since"]);
    assert_is_recent(&connected["last_seen"]);
    let remove_times = |details: &mut Value| {
        let details = details.as_object_mut().unwrap();
        details.remove("connected_since");
        details.remove("last_seen");
    };
    remove_times(&mut connected);
    let mut expected = json!({
        "status": "connected", "account": "010101", "org_id": OWN_ORG,
        "client_id": fixture.own_client_id, "kind": "host", "dialect": "status",
        "topic_prefix": "redhat/insights",
        "canonical_facts": {"fqdn": fqdn(&fixture.own_client_id)},
        "dispatchers": {"echo": {}}, "tags": {"make": "raw"}, "client_version": "1.2.3",
        "reconnects": 0,
    });
    assert_eq!(connected, expected);

    let mut disconnected = fixture.disconnect_own_client().await;
    assert_is_recent(&disconnected["disconnected_at"]);
    assert!(disconnected.as_object().unwrap().contains_key("reason"));
    remove_times(&mut disconnected);
    expected["status"] = json!("disconnected");
    for field in ["disconnected_at", "reason"] {
        expected[field] = disconnected[field].clone();
    }
    assert_eq!(disconnected, expected);
}

async fn unknown_foreign_and_tenantless_clients_have_the_same_response(mode: DeploymentMode) {
    let fixture = Fixture::start(mode).await;
    let not_found = (
        404,
        r#"{"title":"Client not found","status":404,"detail":"The organization has no client with this id"}"#
            .to_owned(),
    );
    for client_id in [
        "unknown",
        &fixture.other_client_id,
        &fixture.tenantless_client_id,
        "invalid%23id",
        "%00",
    ] {
        for path in [
            "",
            "/history",
            "/history?limit=0",
            "/history?cursor=7&limit=2",
        ] {
            let path = format!("/connections/{client_id}{path}");
            let response = text_response(fixture.tenant_request(&path)).await;
            assert_eq!(response, not_found, "{path}");
        }
    }
    for path in [
        "/clients?search=x".to_owned(),
        format!("/clients/{}/diagnosis", fixture.own_client_id),
    ] {
        let (status, _) = text_response(fixture.tenant_request(&path)).await;
        assert_eq!(status, 401, "{path} requires the scope management");
    }
}

async fn list_and_status_contain_times_and_version(mode: DeploymentMode) {
    let fixture = Fixture::start(mode).await;
    let list = json_response(fixture.tenant_request("/connections")).await;
    let path = format!("/connections/{}/status", fixture.own_client_id);
    let status = json_response(fixture.tenant_request(&path)).await;
    for connection in [&list["data"][0], &status] {
        assert_eq!(connection["client_id"], fixture.own_client_id);
        assert_eq!(connection["client_version"], "1.2.3");
        assert_is_recent(&connection["connected_since"]);
        assert_is_recent(&connection["last_seen"]);
    }
}

async fn history_rejects_unknown_parameters_and_invalid_cursors(mode: DeploymentMode) {
    let fixture = Fixture::start(mode).await;
    let history = format!("/connections/{}/history", fixture.own_client_id);
    for (query, detail_part) in [
        (
            "?offset=1&limit=5&x=",
            "unknown query parameter: offset, x;",
        ),
        ("?cursor=x", "cursor must be"),
        ("?limit=-1", "limit must be"),
    ] {
        let (status, body) =
            text_response(fixture.tenant_request(&format!("{history}{query}"))).await;
        assert_eq!(status, 400, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains(detail_part), "{detail}");
    }
    let page = json_response(fixture.tenant_request(&format!("{history}?cursor=&limit="))).await;
    assert!(page["data"].is_array(), "{page}");
}

async fn clients_of_any_organization_are_found_by_their_fqdn(mode: DeploymentMode) {
    let fixture = Fixture::start(mode).await;
    let search = async |text: &str| {
        let path = format!("/clients?search={text}");
        json_response(fixture.management_request(&path)).await["data"].take()
    };
    for (client_id, org_id, state) in [
        (&fixture.own_client_id, json!(OWN_ORG), "connected"),
        (&fixture.other_client_id, json!(OTHER_ORG), "connected"),
        (&fixture.tenantless_client_id, Value::Null, "tenantless"),
    ] {
        let found = search(&fqdn(client_id)).await;
        assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found[0]["client_id"], *client_id);
        assert_eq!(found[0]["org_id"], org_id);
        assert_eq!(found[0]["state"], state);
        assert_eq!(search(client_id).await, found);
    }
    for unknown in ["", "%00", "unknown.example"] {
        assert_eq!(search(unknown).await, json!([]), "{unknown:?}");
    }
    for query in ["", "?search=x&org_id=1"] {
        let request = fixture.management_request(&format!("/clients{query}"));
        assert_eq!(text_response(request).await.0, 400, "{query}");
    }
    let is_audited = |line: &Value| {
        line["target"] == "cloud_connector::audit"
            && line["action"] == "search"
            && line["client_id"] == "unknown.example"
    };
    fixture
        .deployment
        .wait_for_log_line("the audit line of the search", is_audited)
        .await;
}

async fn diagnosis_explains_connected_disconnected_tenantless_and_unknown_clients(
    mode: DeploymentMode,
) {
    let mut fixture = Fixture::start(mode).await;
    let summary_contains = |diagnosis: &Value, part: &str| {
        let summary = diagnosis["summary"].as_str().unwrap();
        assert!(summary.contains(part), "{diagnosis}");
    };
    let connected = fixture.diagnosis(&fixture.own_client_id).await;
    assert_eq!(connected["state"], "connected");
    assert_eq!(connected["org_id"], OWN_ORG);
    assert_eq!(connected["account"], "010101");
    assert_eq!(connected["client_version"], "1.2.3");
    assert_eq!(connected["suggestion"], Value::Null);
    assert_eq!(connected["tenant_lookup"], Value::Null);
    summary_contains(&connected, "has been connected to organization 10001 since");

    let tenantless = fixture.diagnosis(&fixture.tenantless_client_id).await;
    assert_eq!(tenantless["state"], "tenantless");
    assert_eq!(tenantless["org_id"], Value::Null);
    assert_eq!(tenantless["tenant_lookup"]["gave_up"], false);
    assert_eq!(tenantless["tenant_lookup"]["max_failed_lookups"], 30);
    summary_contains(&tenantless, "belongs to no organization");

    let unknown = fixture.diagnosis("unknown").await;
    assert_eq!(unknown["state"], "unknown");
    assert_eq!(unknown["client_id"], "unknown");
    assert_eq!(unknown["history"], json!([]));
    summary_contains(&unknown, "The client is unknown");

    fixture.disconnect_own_client().await;
    let disconnected = fixture.diagnosis(&fixture.own_client_id).await;
    assert_eq!(disconnected["state"], "disconnected");
    assert_is_recent(&disconnected["disconnected_at"]);
    assert!(disconnected["suggestion"].is_string(), "{disconnected}");
    summary_contains(&disconnected, "has been disconnected since");
    let is_audited = |line: &Value| {
        line["target"] == "cloud_connector::audit"
            && line["action"] == "diagnosis"
            && line["client_id"] == "unknown"
    };
    fixture
        .deployment
        .wait_for_log_line("the audit line of the diagnosis", is_audited)
        .await;
}

//! Tests of the isolation of tenants. An organization cannot query clients of other organizations
//! or send messages to them. No caller can query a client without a tenant or send messages to it.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{
    ApiFixture, OK, OTHER_ACCOUNT, OTHER_ORG, OWN_ACCOUNT, OWN_ORG, error_response, json_response,
};
use test_support::mqtt::{control_out_topic, offline_message};
use test_support::{DeploymentMode, each_deployment, eventually, unique_id};

each_deployment!(
    no_endpoint_gives_access_to_clients_of_other_tenants,
    hidden_clients_and_unknown_clients_have_the_same_responses,
);

async fn no_endpoint_gives_access_to_clients_of_other_tenants(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let disconnected = json!({"status": "disconnected"});
    for hidden_client_id in [
        &fixture.other_org_client_id,
        &fixture.satellite_id,
        &fixture.tenantless_client_id,
    ] {
        for id_variant in path_variants(hidden_client_id) {
            let path = format!("/connections/{id_variant}/status");
            let response = json_response(fixture.v2_request(OWN_ORG, "GET", &path)).await;
            assert_eq!(response, (OK, disconnected.clone()), "{id_variant}");
            let path = format!("/connections/{id_variant}/message");
            let message_request = fixture
                .v2_request(OWN_ORG, "POST", &path)
                .json(&json!({"directive": "d"}));
            assert_eq!(error_response(message_request).await.0, 404, "{id_variant}");
            for command_name in ["ping", "reconnect", "disconnect"] {
                let path = format!("/connections/{id_variant}/{command_name}");
                let command_request = fixture
                    .v2_request(OWN_ORG, "POST", &path)
                    .json(&json!({"delay": 1}));
                assert_eq!(
                    error_response(command_request).await.0,
                    404,
                    "{command_name} {id_variant}"
                );
            }
            for level in 1..=3 {
                let path = format!("/connections/{id_variant}/check?level={level}&directive=d");
                let response = json_response(fixture.v2_request(OWN_ORG, "POST", &path)).await;
                let expected = json!({"level": level, "status": "disconnected"});
                assert_eq!(response, (OK, expected), "{id_variant}");
            }
        }
        let batch = json!({"client_ids": [hidden_client_id]});
        let response = json_response(
            fixture
                .v2_request(OWN_ORG, "POST", "/connections/status")
                .json(&batch),
        )
        .await;
        let expected = json!({"status": "disconnected", "client_id": hidden_client_id});
        assert_eq!(response.1, json!({"data": [expected]}));
        for query in [
            format!("search={hidden_client_id}"),
            format!("search={hidden_client_id}&cursor="),
            "cursor=&limit=10000".to_owned(),
            "dispatcher=echo&limit=10000".to_owned(),
            "dispatcher=foreman_rh_cloud&cursor=".to_owned(),
            "fqdn=raw.example&tag=make:raw".to_owned(),
        ] {
            let path = format!("/connections?{query}");
            let (_, list) = json_response(fixture.v2_request(OWN_ORG, "GET", &path)).await;
            let listed_data = list["data"].to_string();
            assert!(
                !listed_data.contains(hidden_client_id.as_str()),
                "{query}: {list}"
            );
        }
        let node = json!({"account": OWN_ACCOUNT, "node_id": hidden_client_id});
        let response =
            json_response(fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &node)).await;
        assert_eq!(response.1, disconnected);
        let message =
            json!({"account": OWN_ACCOUNT, "recipient": hidden_client_id, "directive": "d"});
        assert_eq!(
            error_response(fixture.v1_post_request(OWN_ACCOUNT, "/message", &message))
                .await
                .0,
            404
        );
    }
    let (_, page) = json_response(fixture.v2_request(OWN_ORG, "GET", "/connections")).await;
    assert_eq!(page["meta"]["count"], 1);
    assert_eq!(page["data"][0]["client_id"], fixture.own_org_client_id);
    assert_management_endpoints_hide_the_tenantless_client(&fixture).await;
    let no_connections = json!([]);
    for org in [" ", "''", "%00"] {
        let (status, body) =
            status_and_optional_json(fixture.v2_request(org, "GET", "/connections")).await;
        assert!(
            status == 401 || body["data"] == no_connections,
            "{org:?} {body}"
        );
    }
}

/// Checks that a caller cannot distinguish a client of another organization or a tenantless client from a
/// client that never existed: the responses of all endpoints are equal, byte by byte.
async fn hidden_clients_and_unknown_clients_have_the_same_responses(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    // A disconnected client of the other organization.
    let disconnected_id = &fixture.unconnected_client_id;
    let mut client = super::connect_client(&fixture.deployment, disconnected_id, "echo").await;
    let topic = control_out_topic(disconnected_id);
    client.must_publish(&topic, &offline_message()).await;
    let details = format!("/connections/{disconnected_id}");
    eventually("the disconnected client", || async {
        let request = fixture.v2_request(OTHER_ORG, "GET", &details);
        let (status, body) = json_response(request).await;
        (status == OK && body["status"] == "disconnected").then_some(())
    })
    .await;
    let unknown_id = unique_id("unknown");
    let expected = all_responses(&fixture, &unknown_id).await;
    assert!(expected.len() > 15, "{}", expected.len());
    for hidden_id in [
        &fixture.other_org_client_id,
        &fixture.satellite_id,
        &fixture.tenantless_client_id,
        disconnected_id,
    ] {
        let responses = all_responses(&fixture, hidden_id).await;
        for (response, expected) in responses.iter().zip(&expected) {
            assert_eq!(response, expected, "{hidden_id}");
        }
        assert_eq!(responses.len(), expected.len());
    }
}

/// A response without the headers that differ between equal requests, and with `ID` in place of the client
/// id.
#[derive(Debug, PartialEq)]
struct ComparableResponse {
    request: String,
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Sends a request about the client to each endpoint for callers of one organization.
async fn all_responses(fixture: &ApiFixture, client_id: &str) -> Vec<ComparableResponse> {
    let mut responses = Vec::new();
    let connection = format!("/connections/{client_id}");
    let requests = [
        ("GET", connection.clone(), None),
        ("GET", format!("{connection}/history"), None),
        (
            "GET",
            format!("{connection}/history?limit=1&cursor=2"),
            None,
        ),
        ("GET", format!("{connection}/status"), None),
        (
            "POST",
            format!("{connection}/message"),
            Some(json!({"directive": "d"})),
        ),
        ("POST", format!("{connection}/ping"), None),
        (
            "POST",
            format!("{connection}/reconnect"),
            Some(json!({"delay": 1})),
        ),
        ("POST", format!("{connection}/disconnect"), Some(json!({}))),
        ("POST", format!("{connection}/check?level=1"), None),
        ("POST", format!("{connection}/check?level=2"), None),
        (
            "POST",
            "/connections/status".to_owned(),
            Some(json!({"client_ids": [client_id]})),
        ),
        ("GET", format!("/connections?search={client_id}"), None),
        (
            "GET",
            format!("/connections?search={client_id}&cursor="),
            None,
        ),
        ("GET", format!("/connections?fqdn={client_id}"), None),
        ("GET", format!("/clients?search={client_id}"), None),
        ("GET", format!("/clients/{client_id}/diagnosis"), None),
    ];
    for (method, path, body) in requests {
        let mut request = fixture.v2_request(OWN_ORG, method, &path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        responses.push(comparable_response(request, client_id, &format!("{method} {path}")).await);
    }
    for (path, id_field, fields) in [
        ("/connection_status", "node_id", json!({})),
        ("/message", "recipient", json!({"directive": "d"})),
    ] {
        let mut body = fields;
        body["account"] = OWN_ACCOUNT.into();
        body[id_field] = client_id.into();
        let request = fixture.v1_post_request(OWN_ACCOUNT, path, &body);
        responses.push(comparable_response(request, client_id, path).await);
    }
    responses
}

async fn comparable_response(
    request: RequestBuilder,
    client_id: &str,
    description: &str,
) -> ComparableResponse {
    // Length of the body with an id of another length, time, and id of the request.
    const VARIABLE_HEADERS: [&str; 3] = ["content-length", "date", "x-rh-insights-request-id"];
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let headers = response.headers().iter();
    let headers = headers
        .filter(|(name, _)| !VARIABLE_HEADERS.contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let headers = headers.collect();
    let body = response.text().await.unwrap().replace(client_id, "ID");
    ComparableResponse {
        request: description.replace(client_id, "ID"),
        status,
        headers,
        body,
    }
}

/// Checks that the v1 management endpoints do not return the tenantless client.
async fn assert_management_endpoints_hide_the_tenantless_client(fixture: &ApiFixture) {
    for account in [OWN_ACCOUNT, OTHER_ACCOUNT, ""] {
        let node = json!({"account": account, "node_id": fixture.tenantless_client_id, "delay": 1});
        for path in ["status", "ping", "reconnect", "disconnect"] {
            let path = format!("/connection/{path}");
            let (_, response) =
                json_response(fixture.management_request("POST", &path).json(&node)).await;
            let is_hidden = response["status"] == "disconnected" || response["status"] == 400;
            assert!(is_hidden, "{account} {path} {response}");
        }
    }
    let (_, all) = json_response(fixture.management_request("GET", "/connection")).await;
    assert!(
        !all.to_string().contains(&fixture.tenantless_client_id),
        "{all}"
    );
}

/// Sends the request. Returns the status and the body. The body is null if the response is not
/// JSON.
async fn status_and_optional_json(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

/// Returns variants of a client id for a URL path: unchanged, percent-encoded, in upper case, and
/// with appended or prepended characters.
fn path_variants(client_id: &str) -> Vec<String> {
    let encoded_bytes: Vec<String> = client_id
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    vec![
        client_id.to_owned(),
        encoded_bytes.concat(),
        client_id.to_uppercase(),
        format!("{client_id}%20"),
        format!("{client_id}%00"),
        format!("x%2F..%2F{client_id}"),
    ]
}

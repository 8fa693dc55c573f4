//! Tests of the v2 endpoints: list, status, batch status, and relaxed lookup of Satellite servers.

use serde_json::json;

use super::{
    ApiFixture, OK, OTHER_ACCOUNT, OTHER_ORG, OWN_ACCOUNT, OWN_ORG, error_response, json_response,
    json_text_response, without_times,
};
use test_support::DeploymentMode;
use test_support::each_deployment;

each_deployment!(
    v2_list_and_status_return_the_expected_bodies,
    batch_status_returns_clients_in_the_order_of_the_request,
    relaxed_lookup_finds_satellite_servers_of_other_organizations,
);

async fn v2_list_and_status_return_the_expected_bodies(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let connection_fields = format!(
        concat!(
            r#""account":"010101","org_id":"10001","client_id":"{}","#,
            r#""canonical_facts":{{"fqdn":"raw.example"}},"dispatchers":{{"echo":{{}}}},"#,
            r#""tags":{{"make":"raw"}},"connected_since":"[time]","last_seen":"[time]""#
        ),
        fixture.own_org_client_id
    );
    let path = format!("/connections/{}/status", fixture.own_org_client_id);
    let status = json_text_response(fixture.v2_request(OWN_ORG, "GET", &path)).await;
    assert_eq!(
        (status.0, without_times(&status.1)),
        (
            OK,
            format!(r#"{{"status":"connected",{connection_fields}}}"#)
        )
    );
    let list = json_text_response(fixture.v2_request(OWN_ORG, "GET", "/connections")).await;
    let link = "/api/cloud-connector/v2/connections?limit=1000&offset=0";
    let expected = format!(
        r#"{{"meta":{{"count":1}},"links":{{"first":"{link}","last":"{link}"}},"data":[{{{connection_fields}}}]}}"#
    );
    assert_eq!((list.0, without_times(&list.1)), (OK, expected));
    let empty_list = json_text_response(fixture.v2_request("10003", "GET", "/connections")).await;
    assert_eq!(
        empty_list,
        (
            OK,
            r#"{"meta":{"count":0},"links":{},"data":[]}"#.to_owned()
        )
    );
}

async fn batch_status_returns_clients_in_the_order_of_the_request(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let batch_status_request = |body| {
        fixture
            .v2_request(OWN_ORG, "POST", "/connections/status")
            .json(&body)
    };
    let client_ids = [
        "unknown",
        &fixture.other_org_client_id,
        &fixture.own_org_client_id,
        &fixture.tenantless_client_id,
        "\u{0}",
        &fixture.own_org_client_id,
    ];
    let (status, response) =
        json_response(batch_status_request(json!({"client_ids": client_ids}))).await;
    assert_eq!(status, OK);
    let data = response["data"].as_array().unwrap();
    let path = format!("/connections/{}/status", fixture.own_org_client_id);
    let (_, own_status) = json_response(fixture.v2_request(OWN_ORG, "GET", &path)).await;
    let expected = client_ids.map(|client_id| {
        if client_id == fixture.own_org_client_id {
            own_status.clone()
        } else {
            json!({"status": "disconnected", "client_id": client_id})
        }
    });
    assert_eq!(data.as_slice(), expected);
    let body_with_ids = |count| json!({"client_ids": vec!["x"; count]});
    assert_eq!(
        json_response(batch_status_request(body_with_ids(1000)))
            .await
            .0,
        OK
    );
    assert_eq!(
        json_response(batch_status_request(body_with_ids(0)))
            .await
            .1,
        json!({"data": []})
    );
    assert_eq!(
        error_response(batch_status_request(body_with_ids(1001))).await,
        (400, "Invalid request".to_owned())
    );
    for invalid_body in [
        json!({}),
        json!({"client_ids": 5}),
        json!({"client_ids": [5]}),
    ] {
        let rejection = error_response(batch_status_request(invalid_body)).await;
        assert_eq!(rejection, (400, "Unable to process json input".to_owned()));
    }
}

async fn relaxed_lookup_finds_satellite_servers_of_other_organizations(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[("api.lookup_mode", "relaxed")]).await;
    let status_request = |client_id: &str| {
        fixture.v2_request(OWN_ORG, "GET", &format!("/connections/{client_id}/status"))
    };
    let (_, status_response) = json_response(status_request(&fixture.satellite_id)).await;
    assert_eq!(
        (
            &status_response["status"],
            &status_response["org_id"],
            &status_response["account"]
        ),
        (
            &json!("connected"),
            &json!(OTHER_ORG),
            &json!(OTHER_ACCOUNT)
        ),
    );
    let node = json!({"account": OWN_ACCOUNT, "node_id": fixture.satellite_id});
    let status_response =
        json_response(fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &node)).await;
    assert_eq!(status_response.1["status"], "connected");
    let path = format!("/connections/{}/message", fixture.satellite_id);
    let message_request = fixture
        .v2_request(OWN_ORG, "POST", &path)
        .json(&json!({"directive": "d"}));
    assert_eq!(json_response(message_request).await.0, 201);
    let message =
        json!({"account": OWN_ACCOUNT, "recipient": fixture.satellite_id, "directive": "d"});
    assert_eq!(
        json_response(fixture.v1_post_request(OWN_ACCOUNT, "/message", &message))
            .await
            .0,
        201
    );
    // Management endpoints and lists do not return the Satellite server.
    let management_status = json_response(
        fixture
            .management_request("POST", "/connection/status")
            .json(&node),
    )
    .await;
    assert_eq!(management_status.1, json!({"status": "disconnected"}));
    let page = json_response(fixture.v2_request(OWN_ORG, "GET", "/connections"))
        .await
        .1;
    assert_eq!(page["meta"]["count"], 1);
    // Relaxed lookup does not find clients of other organizations that are not Satellite servers.
    for hidden_client_id in [&fixture.other_org_client_id, &fixture.tenantless_client_id] {
        assert_eq!(
            json_response(status_request(hidden_client_id)).await.1,
            json!({"status": "disconnected"})
        );
        let path = format!("/connections/{hidden_client_id}/message");
        let message_request = fixture
            .v2_request(OWN_ORG, "POST", &path)
            .json(&json!({"directive": "d"}));
        assert_eq!(error_response(message_request).await.0, 404);
    }
}

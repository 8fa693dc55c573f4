//! Tests of `GET /v2/events`.

use std::time::{Duration, Instant};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::{EventReader, check_events_of_client, run_client};
use test_support::{Connector, Deployment, each_deployment, unique_id};

each_deployment!(
    stream_shows_the_events_of_a_client_in_order,
    resumed_stream_has_no_gap_and_no_duplicate,
    unknown_id_gives_a_reset_and_the_stream_continues,
    filters_select_events,
    unknown_query_parameters_are_rejected,
    too_many_streams_are_rejected with &[("events.max_streams", "2")],
    disabled_events_have_no_stream with &[("events.enabled", "false")],
    asyncapi_document_needs_no_credentials_and_describes_the_events,
);

const ORG_ID_HEADER: HeaderName = HeaderName::from_static("x-rh-cloud-connector-org-id");

async fn stream_shows_the_events_of_a_client_in_order(deployment: Deployment) {
    let client_id = unique_id("events");
    let mut reader = EventReader::open(&deployment, "").await;
    assert_eq!(reader.next_block().await.as_deref(), Some("id: 0"));
    // `headers` replaces the organization of the request.
    let organization = HeaderValue::from_static("another-organization");
    let organization = HeaderMap::from_iter([(ORG_ID_HEADER, organization)]);
    let request = deployment
        .request("GET", "/v2/events")
        .headers(organization);
    let mut other_organization = EventReader::from_request(request).await;
    run_client(&deployment, &client_id).await;
    check_events_of_client(&reader.next_events(3).await, &client_id);
    // The other stream sends only its start and its position.
    assert_eq!(
        other_organization.next_block().await.as_deref(),
        Some("id: 0")
    );
    let heartbeat = other_organization.next_block().await.unwrap();
    assert!(
        heartbeat.starts_with(": no new events\nid: "),
        "{heartbeat}"
    );
}

async fn resumed_stream_has_no_gap_and_no_duplicate(deployment: Deployment) {
    let client_id = unique_id("resume");
    let mut reader = EventReader::open(&deployment, "").await;
    run_client(&deployment, &client_id).await;
    let events = reader.next_events(3).await;
    drop(reader);
    let second_client_id = unique_id("resume");
    run_client(&deployment, &second_client_id).await;
    let mut resumed = EventReader::resume(&deployment, &events[0].id.to_string()).await;
    let resumed_events = resumed.next_events(5).await;
    assert_eq!(resumed_events[..2], events[1..]);
    check_events_of_client(&resumed_events[2..], &second_client_id);
    let query = format!("?last_event_id={}", events[2].id);
    let mut resumed = EventReader::open(&deployment, &query).await;
    assert_eq!(resumed.next_events(3).await, resumed_events[2..]);
}

async fn unknown_id_gives_a_reset_and_the_stream_continues(deployment: Deployment) {
    let client_id = unique_id("reset");
    let mut reader = EventReader::open(&deployment, "").await;
    run_client(&deployment, &client_id).await;
    let newest_id = reader.next_events(3).await[2].id;
    for unknown_id in ["1000000", "not-a-number"] {
        let mut resumed = EventReader::resume(&deployment, unknown_id).await;
        let reset = resumed.next_event().await;
        assert_eq!((reset.id, reset.event_type.as_str()), (newest_id, "reset"));
    }
    let mut resumed = EventReader::resume(&deployment, "1000000").await;
    assert_eq!(resumed.next_event().await.event_type, "reset");
    let later_client_id = unique_id("reset");
    run_client(&deployment, &later_client_id).await;
    check_events_of_client(&resumed.next_events(3).await, &later_client_id);
}

async fn filters_select_events(deployment: Deployment) {
    let (first, second) = (unique_id("filter"), unique_id("filter"));
    let open = async |query: &str| EventReader::open(&deployment, query).await;
    let mut offline = open("?type=connection.offline").await;
    let mut of_second = open(&format!("?client_id={second}")).await;
    let mut by_dispatcher = open("?dispatcher=unknown,rhc-worker-new").await;
    let mut by_old_dispatcher = open("?dispatcher=echo&type=connection.updated").await;
    run_client(&deployment, &first).await;
    run_client(&deployment, &second).await;
    for client_id in [&first, &second] {
        let event = offline.next_event().await;
        assert_eq!(event.event_type, "connection.offline");
        assert_eq!(event.data["client_id"], **client_id);
        let event = by_old_dispatcher.next_event().await;
        assert_eq!(event.event_type, "connection.updated");
        for expected_type in ["connection.updated", "connection.offline"] {
            let event = by_dispatcher.next_event().await;
            assert_eq!(event.event_type, expected_type);
            assert_eq!(event.data["client_id"], **client_id);
        }
    }
    check_events_of_client(&of_second.next_events(3).await, &second);
}

async fn unknown_query_parameters_are_rejected(deployment: Deployment) {
    let request = deployment.request("GET", "/v2/events?types=connection.online");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    assert!(body["detail"].as_str().unwrap().contains("types"), "{body}");
}

async fn too_many_streams_are_rejected(deployment: Deployment) {
    let mut first = EventReader::open(&deployment, "").await;
    assert!(first.next_block().await.is_some());
    let mut second = EventReader::open(&deployment, "").await;
    assert!(second.next_block().await.is_some());
    let request = deployment.request("GET", "/v2/events");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    drop(first);
    // The server notices that the caller has closed the connection.
    test_support::eventually("another stream", || async {
        let request = deployment.request("GET", "/v2/events");
        let response = request.send().await.unwrap();
        (response.status() == 200).then_some(())
    })
    .await;
}

async fn disabled_events_have_no_stream(deployment: Deployment) {
    let request = deployment.request("GET", "/v2/events");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 404);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["title"], "Events are disabled");
}

async fn asyncapi_document_needs_no_credentials_and_describes_the_events(deployment: Deployment) {
    let request = deployment.unauthenticated_request("GET", "/asyncapi.json");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let document: Value = response.json().await.unwrap();
    assert_eq!(document["asyncapi"], "3.0.0");
    let channels = document["channels"].as_object().unwrap();
    assert_eq!(
        channels["stream"]["address"],
        "/api/cloud-connector/v2/events"
    );
    assert_eq!(
        channels.contains_key("topic"),
        deployment.has_external_broker()
    );
}

#[tokio::test]
async fn open_stream_ends_at_shutdown_and_does_not_delay_it() {
    let mut connector = Connector::start().await;
    let request = connector.request("GET", "/v2/events");
    let mut reader = EventReader::from_request(request).await;
    assert_eq!(reader.next_block().await.as_deref(), Some("id: 0"));
    let started_at = Instant::now();
    connector.send_signal("TERM");
    assert_eq!(reader.next_block().await, None);
    assert_eq!(connector.wait_for_exit().await.code(), Some(0));
    assert!(started_at.elapsed() < Duration::from_secs(10));
}

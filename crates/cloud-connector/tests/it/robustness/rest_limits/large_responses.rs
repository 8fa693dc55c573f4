//! Lists of connections with large facts: the size of a page, and the memory of the process while
//! callers do not read their responses.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use test_support::cluster::API_KEY;
use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::Connect;
use test_support::{Deployment, RawClient, each_deployment, eventually};

each_deployment!(
    lists_and_batches_that_are_not_read_use_a_bounded_amount_of_memory,
    pages_of_large_rows_end_early_and_their_links_return_every_row_once,
    row_over_the_size_limit_is_a_page_of_its_own with &[("api.max_response_bytes", "65536")],
    batch_status_over_the_size_limit_is_complete,
);

/// Maximum size of a page with its links.
const MAX_PAGE_BYTES: usize = 9 * 1024 * 1024;
/// Resident memory that the process may use at most.
const MAX_RESIDENT_MIB: u64 = 300;
/// Resident memory of the process a minute after the last large response.
const MAX_IDLE_RESIDENT_MIB: u64 = 150;

/// Inserts connections with 120 kB of facts each. The facts consist of many small values, which use
/// the most memory for their size. The jobs skip these connections.
async fn insert_large_rows(deployment: &Deployment, count: usize) {
    let sql = match deployment {
        Deployment::Embedded(_) => {
            "WITH RECURSIVE numbers (i) AS (
                 SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i < {count} - 1)
             INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
                    canonical_facts, dispatchers, tags, client_name, client_version, message_id,
                    message_sent, online_received_at, created_at, updated_at, inventory_eligible)
             SELECT printf('large-%04d', i), '10000', '111000', 'status', 'host',
                    'redhat/insights', '{\"values\":{\"list\":['
                        || replace(hex(zeroblob(40000)), '00', '10,') || '10]}}',
                    '{}', '{}', '', '', 'm' || i, 1, 1, 1, 1, 0
               FROM numbers"
        }
        Deployment::Distributed(_) => {
            "INSERT INTO connections (client_id, org_id, account, canonical_facts, message_id,
                    inventory_eligible)
             SELECT 'large-' || lpad(i::text, 4, '0'), '10000', '111000',
                    ('{\"values\":{\"list\":[' || repeat('10,', 40000) || '10]}}')::jsonb, 'm' || i,
                    false
               FROM generate_series(0, {count} - 1) AS i"
        }
    };
    let sql = sql.replace("{count}", &count.to_string());
    deployment.execute(sql.leak()).await;
}

/// Connects the clients of inserted rows. In embedded mode, the status of a client is "connected" only
/// if the broker has a connection of the client.
async fn connect_clients(deployment: &Deployment, client_ids: &[String]) -> Vec<RawClient> {
    let mut clients = Vec::new();
    if !deployment.has_external_broker() {
        for client_id in client_ids {
            let connect = Connect::new(client_id).without_keep_alive();
            clients.push(RawClient::connect(&deployment.mqtt_address(), &connect).await);
        }
    }
    clients
}

/// Sends a request and does not read the response.
async fn send_without_reading(
    deployment: &Deployment,
    method: &str,
    path: &str,
    body: &str,
) -> TcpStream {
    let (url, key_name, secret) = match deployment {
        Deployment::Embedded(connector) => {
            let secret = connector.api_key.as_str();
            (&connector.http_url, "local", secret)
        }
        Deployment::Distributed(distributed) => (&distributed.process.http_url, "tester", API_KEY),
    };
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} /api/cloud-connector{path} HTTP/1.1\r\nhost: {address}\r\n\
         x-rh-cloud-connector-client-id: {key_name}\r\nx-rh-cloud-connector-psk: {secret}\r\n\
         x-rh-cloud-connector-org-id: {DEFAULT_ORG_ID}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Checks the resident memory of the process until `condition` completes.
async fn check_memory_until(deployment: &Deployment, condition: impl Future<Output = ()>) {
    let check_memory = async {
        loop {
            let resident_mib = deployment.resident_memory_mib();
            assert!(
                resident_mib <= MAX_RESIDENT_MIB,
                "{resident_mib} MiB are resident; at most {MAX_RESIDENT_MIB} MiB are expected"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = condition => {}
        () = check_memory => {}
    }
}

async fn lists_and_batches_that_are_not_read_use_a_bounded_amount_of_memory(
    deployment: Deployment,
) {
    insert_large_rows(&deployment, 4000).await;
    let client_ids: Vec<String> = (0..1000).map(|i| format!("large-{i:04}")).collect();
    let _clients = connect_clients(&deployment, &client_ids).await;
    let batch = json!({"client_ids": client_ids}).to_string();
    let mut unread = Vec::new();
    for path in [
        "/v2/connections?limit=10000",
        "/v2/connections?cursor=&limit=10000",
    ] {
        for _ in 0..3 {
            unread.push(send_without_reading(&deployment, "GET", path, "").await);
        }
    }
    for _ in 0..2 {
        let path = "/v2/connections/status";
        unread.push(send_without_reading(&deployment, "POST", path, &batch).await);
    }
    // Some of the responses start, and a small list does not wait until the large lists are read.
    let responses_start = async {
        eventually("four responses", || {
            let started = unread.iter().filter(|stream| has_data(stream)).count();
            async move { (started >= 4).then_some(()) }
        })
        .await;
        let small_list = get_json(&deployment, "/v2/connections?limit=1").await;
        assert_eq!(small_list["data"].as_array().unwrap().len(), 1);
    };
    check_memory_until(&deployment, responses_start).await;
    drop(unread);
    let page = async {
        let page = get_json(&deployment, "/v2/connections?limit=10000").await;
        assert_eq!(page["meta"]["count"], 4000);
    };
    check_memory_until(&deployment, page).await;
    eventually("the release of memory", || async {
        let resident_mib = deployment.resident_memory_mib();
        (resident_mib <= MAX_IDLE_RESIDENT_MIB).then_some(())
    })
    .await;
}

/// Returns whether the peer has sent data that was not read.
fn has_data(stream: &TcpStream) -> bool {
    let mut byte = [0];
    matches!(stream.try_read(&mut byte), Ok(1))
}

/// Sends a GET request, which must succeed. Retries the request while all database connections are in
/// use. `path` is the part after `/api/cloud-connector`.
async fn get_json(deployment: &Deployment, path: &str) -> Value {
    eventually("a response without status 503", || async {
        let request = match deployment {
            Deployment::Embedded(connector) => connector.request("GET", path),
            Deployment::Distributed(distributed) => distributed.process.request("GET", path),
        };
        // The test may need longer for a page than the server keeps an idle connection open.
        let request = request.header("connection", "close");
        let response = request.send().await.unwrap();
        match response.status().as_u16() {
            200 => Some(response.json().await.unwrap()),
            503 => None,
            status => panic!("unexpected status {status} of {path}"),
        }
    })
    .await
}

fn client_ids_of(page: &Value) -> Vec<String> {
    let rows = page["data"].as_array().unwrap().iter();
    rows.map(|row| row["client_id"].as_str().unwrap().to_owned())
        .collect()
}

async fn pages_of_large_rows_end_early_and_their_links_return_every_row_once(
    deployment: Deployment,
) {
    insert_large_rows(&deployment, 200).await;
    let expected: Vec<String> = (0..200).map(|i| format!("large-{i:04}")).collect();
    for first_path in ["/v2/connections", "/v2/connections?cursor="] {
        let mut path = first_path.to_owned();
        let mut client_ids = Vec::new();
        let mut page_count = 0;
        loop {
            let page = get_json(&deployment, &path).await;
            let size = page.to_string().len();
            assert!(size <= MAX_PAGE_BYTES, "a page has {size} bytes");
            if first_path == "/v2/connections" {
                assert_eq!(page["meta"]["count"], 200, "{path}");
            }
            client_ids.extend(client_ids_of(&page));
            page_count += 1;
            let Some(next) = page["links"]["next"].as_str() else {
                break;
            };
            next.strip_prefix("/api/cloud-connector")
                .unwrap()
                .clone_into(&mut path);
        }
        assert_eq!(client_ids, expected, "{first_path}");
        assert!(page_count > 1, "{page_count} pages");
    }
}

async fn row_over_the_size_limit_is_a_page_of_its_own(deployment: Deployment) {
    insert_large_rows(&deployment, 3).await;
    for (first_path, is_offset) in [
        ("/v2/connections?limit=2", true),
        ("/v2/connections?cursor=", false),
    ] {
        let mut path = first_path.to_owned();
        for i in 0..3 {
            let page = get_json(&deployment, &path).await;
            assert_eq!(client_ids_of(&page), [format!("large-{i:04}")], "{path}");
            if is_offset {
                assert_eq!(page["meta"]["count"], 3, "{path}");
            }
            let next = page["links"]["next"].as_str();
            assert_eq!(next.is_some(), i < 2, "{path}: {next:?}");
            let next = next.unwrap_or_default().to_owned();
            path = next.replacen("/api/cloud-connector", "", 1);
        }
    }
}

async fn batch_status_over_the_size_limit_is_complete(deployment: Deployment) {
    insert_large_rows(&deployment, 150).await;
    let mut client_ids: Vec<String> = (0..150).rev().map(|i| format!("large-{i:04}")).collect();
    let _clients = connect_clients(&deployment, &client_ids).await;
    client_ids.push("unknown".to_owned());
    client_ids.push("large-0007".to_owned());
    let path = "/v2/connections/status";
    let request = match &deployment {
        Deployment::Embedded(connector) => connector.request("POST", path),
        Deployment::Distributed(distributed) => distributed.process.request("POST", path),
    };
    let response = request
        .json(&json!({"client_ids": client_ids}))
        .send()
        .await;
    let response = response.unwrap();
    assert_eq!(response.status(), 200);
    let body: Value = response.json().await.unwrap();
    assert_eq!(client_ids_of(&body), client_ids);
    for entry in body["data"].as_array().unwrap() {
        let is_connected = entry["status"] == "connected";
        assert_eq!(
            is_connected,
            entry["client_id"] != "unknown",
            "{}",
            entry["client_id"]
        );
        if is_connected {
            let values = &entry["canonical_facts"]["values"]["list"];
            assert_eq!(values.as_array().unwrap().len(), 40_001);
        }
    }
}

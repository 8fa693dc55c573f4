//! Callers request lists of connections with large facts. Some callers do not read the response.

use std::time::Duration;

use anyhow::{Result, ensure};
use sqlx::AssertSqlSafe;
use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::connector::DEFAULT_ORG_ID;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::sampling::{self, MeasuredProcess};
use super::support::report::Measurement;

const ROW_COUNT: usize = 4_000;
const FACTS_BYTES: usize = 120_000;
const CONCURRENT_CALLERS: usize = 8;
/// Number of callers that send a request and do not read the response.
const CALLERS_THAT_DO_NOT_READ: usize = 32;
/// Time for which these callers keep their connections open.
const CALLER_WAIT: Duration = Duration::from_secs(15);

/// Measures the role `api`.
pub async fn measure() -> Result<Vec<Measurement>> {
    let cluster = Cluster::new().await;
    insert_rows(&cluster).await?;
    let api = cluster.start(&["api"]).await;
    let process = [MeasuredProcess {
        name: "api",
        pid: api.pid(),
    }];
    let mut callers = Vec::new();
    for _ in 0..CONCURRENT_CALLERS {
        callers.push(read_all_pages(&api));
    }
    for row_count in futures::future::try_join_all(callers).await? {
        ensure!(row_count == ROW_COUNT, "the pages contain {row_count} rows");
    }
    let mut measurements = sampling::measure("8 callers of 4,000 rows of 120 kB", &process).await?;
    let mut sockets = Vec::new();
    for _ in 0..CALLERS_THAT_DO_NOT_READ {
        sockets.push(send_request_without_reading(&cluster, &api).await?);
    }
    tokio::time::sleep(CALLER_WAIT).await;
    measurements
        .extend(sampling::measure("32 callers of the same that do not read", &process).await?);
    drop(sockets);
    Ok(measurements)
}

async fn insert_rows(cluster: &Cluster) -> Result<()> {
    let mut database = cluster.connect_to_database().await;
    let insert = format!(
        "INSERT INTO connections (client_id, org_id, account, canonical_facts)
         SELECT 'client-' || i, '{DEFAULT_ORG_ID}', '111000',
                jsonb_build_object('fqdn', 'host' || i,
                    'note', (SELECT string_agg(md5(i::text || j), '')
                               FROM generate_series(1, {FACTS_BYTES} / 32) AS j))
           FROM generate_series(1, {ROW_COUNT}) AS i"
    );
    sqlx::query(AssertSqlSafe(insert))
        .execute(&mut database)
        .await?;
    Ok(())
}

/// Requests the list and follows the link to the next page until the last page. Returns the number
/// of rows on all pages.
async fn read_all_pages(api: &ConnectorProcess) -> Result<usize> {
    let mut rows = 0;
    let mut next_path = Some(format!("/v2/connections?limit={ROW_COUNT}"));
    while let Some(path) = next_path {
        let response = api.request("GET", &path).send().await?;
        ensure!(response.status().is_success(), "{}", response.status());
        let page: serde_json::Value = response.json().await?;
        rows += page["data"].as_array().map_or(0, Vec::len);
        let link = page["links"]["next"]
            .as_str()
            .filter(|link| !link.is_empty());
        next_path = link.map(|link| link.trim_start_matches("/api/cloud-connector").to_owned());
    }
    Ok(rows)
}

async fn send_request_without_reading(
    cluster: &Cluster,
    api: &ConnectorProcess,
) -> Result<TcpStream> {
    let api_key = cluster.setting("api.keys.tester");
    let mut socket = TcpStream::connect(api.http_url.trim_start_matches("http://")).await?;
    let request = format!(
        "GET /api/cloud-connector/v2/connections?limit={ROW_COUNT} HTTP/1.1\r\nhost: localhost\r\n\
         x-rh-cloud-connector-client-id: tester\r\nx-rh-cloud-connector-psk: {api_key}\r\n\
         x-rh-cloud-connector-org-id: {DEFAULT_ORG_ID}\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    Ok(socket)
}

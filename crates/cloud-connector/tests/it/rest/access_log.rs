//! Tests that callers cannot fill the access log or forge its lines.

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use test_support::{Deployment, each_deployment};

each_deployment!(
    long_paths_and_methods_are_truncated_in_the_access_log,
    a_path_of_one_megabyte_is_rejected,
);

fn http_address(deployment: &Deployment) -> String {
    let http_url = match deployment {
        Deployment::Embedded(connector) => &connector.http_url,
        Deployment::Distributed(distributed) => &distributed.process.http_url,
    };
    http_url.strip_prefix("http://").unwrap().to_owned()
}

/// Sends a request as it is. Returns the response up to its end, or up to a connection error.
async fn send_raw(deployment: &Deployment, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(http_address(deployment)).await.unwrap();
    // The server may respond and close the connection before it has read the whole request.
    let _ = stream.write_all(request).await;
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

fn raw_request(method: &str, path: &[u8], request_id: &str) -> Vec<u8> {
    let mut request = format!("{method} ").into_bytes();
    request.extend(path);
    request.extend(
        format!(
            " HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             x-rh-insights-request-id: {request_id}\r\n\r\n"
        )
        .into_bytes(),
    );
    request
}

async fn access_log_line(deployment: &Deployment, request_id: &str) -> Value {
    let is_line = |line: &Value| {
        line["target"] == "cloud_connector::access" && line["request_id"] == request_id
    };
    deployment.wait_for_log_line(request_id, is_line).await
}

async fn long_paths_and_methods_are_truncated_in_the_access_log(deployment: Deployment) {
    let path = format!("/{}", "p".repeat(59_999));
    let response = send_raw(
        &deployment,
        &raw_request("GET", path.as_bytes(), "long-path"),
    )
    .await;
    assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
    let line = access_log_line(&deployment, "long-path").await;
    let logged_path = format!("/{}…(60000 bytes)", "p".repeat(255));
    assert_eq!(line["path"], logged_path.as_str());
    assert_eq!(line["method"], "GET");

    let method = "M".repeat(50_000);
    let response = send_raw(&deployment, &raw_request(&method, b"/x", "long-method")).await;
    assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
    let line = access_log_line(&deployment, "long-method").await;
    let logged_method = format!("{}…(50000 bytes)", "M".repeat(16));
    assert_eq!(line["method"], logged_method.as_str());

    // The path contains a right-to-left override and a C1 control character.
    let path = "/a\u{202e}b\u{85}".as_bytes();
    let response = send_raw(&deployment, &raw_request("GET", path, "invisible")).await;
    assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
    let line = access_log_line(&deployment, "invisible").await;
    assert_eq!(line["path"], "/a\\u{202e}b\\u{85}");
}

async fn a_path_of_one_megabyte_is_rejected(deployment: Deployment) {
    let path = format!("/{}", "p".repeat(1024 * 1024));
    let response = send_raw(&deployment, &raw_request("GET", path.as_bytes(), "huge")).await;
    // The connection can be reset before the response is read, because a part of the request was
    // not read.
    let is_rejected = ["HTTP/1.1 414 ", "HTTP/1.1 431 "]
        .iter()
        .any(|status| response.starts_with(status));
    assert!(is_rejected || response.is_empty(), "{response}");
    assert!(deployment.is_ready().await, "the service still responds");
    let longest_line = deployment.log_lines().iter().map(String::len).max();
    assert!(
        longest_line.unwrap_or_default() < 10_000,
        "{longest_line:?}"
    );
}

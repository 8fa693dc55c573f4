//! Tests of the OpenAPI document and of the documentation page.

use std::collections::BTreeSet;

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::{OK, json_response};
use test_support::Deployment;
use test_support::each_deployment;

each_deployment!(
    openapi_document_needs_no_credentials_and_lists_only_existing_endpoints,
    docs_page_needs_no_credentials_and_loads_no_external_resources,
);

/// Method and path of the operations that existing callers use. The OpenAPI document
/// must contain them.
const REQUIRED_OPERATIONS: [(&str, &str); 12] = [
    ("get", "/v1/connection"),
    ("get", "/v1/connection/{account}"),
    ("post", "/v1/connection/disconnect"),
    ("post", "/v1/connection/ping"),
    ("post", "/v1/connection/reconnect"),
    ("post", "/v1/connection/status"),
    ("post", "/v1/connection_status"),
    ("post", "/v1/message"),
    ("get", "/v2/connections"),
    ("post", "/v2/connections/status"),
    ("post", "/v2/connections/{client_id}/message"),
    ("get", "/v2/connections/{client_id}/status"),
];

async fn openapi_document_needs_no_credentials_and_lists_only_existing_endpoints(
    deployment: Deployment,
) {
    let (status, document) =
        json_response(deployment.unauthenticated_request("GET", "/openapi.json")).await;
    assert_eq!(status, OK);
    assert_eq!(document["servers"][0]["url"], "/api/cloud-connector");
    let listed_operations = operations(&document);
    for (method, path) in REQUIRED_OPERATIONS {
        let operation = (method.to_owned(), path.to_owned());
        assert!(listed_operations.contains(&operation), "{method} {path}");
    }
    for (method, path) in &listed_operations {
        let path_with_values = path.replace("{account}", "1").replace("{client_id}", "x");
        let request = deployment.unauthenticated_request(&method.to_uppercase(), &path_with_values);
        // Without credentials, an existing endpoint returns 401 and an unknown path returns 404.
        let status = request.send().await.unwrap().status();
        assert_eq!(status, 401, "{method} {path}");
    }
}

/// Returns method and path of every operation in the OpenAPI document.
fn operations(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        methods.map(|method| (method.clone(), path.clone()))
    });
    operations.collect()
}

async fn docs_page_needs_no_credentials_and_loads_no_external_resources(deployment: Deployment) {
    let mut pending_files = vec!["docs".to_owned()];
    let mut checked_files = BTreeSet::new();
    while let Some(file) = pending_files.pop() {
        if !checked_files.insert(file.clone()) {
            continue;
        }
        let response = deployment
            .unauthenticated_request("GET", &format!("/{file}"))
            .send()
            .await;
        let response = response.unwrap();
        assert_eq!(response.status(), 200, "{file}");
        assert_secure_headers(&file, response.headers());
        let text = response.text().await.unwrap();
        // The namespace of SVG is a URL, but browsers do not load it.
        let text_without_namespace = text.replace("http://www.w3.org/2000/svg", "");
        for external_reference in [
            "http:", "https:", "\"//", "'//", " url(", ":url(", "@import",
        ] {
            assert!(
                !text_without_namespace.contains(external_reference),
                "{file} contains {external_reference}"
            );
        }
        if file != "openapi.json" {
            pending_files.extend(referenced_files(&text));
        }
    }
    for file in [
        "docs/docs.css",
        "docs/docs.js",
        "docs/try.js",
        "openapi.json",
    ] {
        assert!(checked_files.contains(file), "{checked_files:?}");
    }
}

/// Checks the content type, and the headers that forbid browsers to guess the content type and to
/// load resources from other servers.
fn assert_secure_headers(file: &str, headers: &HeaderMap) {
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    let content_type = match extension {
        "" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json; charset=UTF-8",
        "svg" => "image/svg+xml",
        other => panic!("{other}"),
    };
    assert_eq!(headers["content-type"], content_type, "{file}");
    assert_eq!(headers["x-content-type-options"], "nosniff", "{file}");
    let policy = headers["content-security-policy"].to_str().unwrap();
    let mut rules = policy.split("; ");
    assert_eq!(rules.next(), Some("default-src 'none'"), "{file}");
    for rule in rules.filter(|rule| rule.contains("-src ")) {
        assert!(rule.ends_with("-src 'self'"), "{file}: {rule}");
    }
}

/// Returns the paths of the files that a page or a script references.
fn referenced_files(text: &str) -> Vec<String> {
    let files_after = |prefix: &'static str, folder: &'static str| {
        let texts_after_prefix = text.split(prefix).skip(1);
        let names = texts_after_prefix.map(|rest| rest.split('"').next().unwrap());
        let files = names.filter(|name| !name.starts_with('#'));
        files.map(move |name| format!("{folder}{name}"))
    };
    files_after("href=\"", "")
        .chain(files_after("src=\"", ""))
        .chain(files_after("from \"./", "docs/"))
        .collect()
}

//! Shared settings and helpers for HTTP requests to other services (tenant gateway, account
//! translator, sources). The requests to each service belong to that service's module.

use std::time::Duration;

use reqwest::{ClientBuilder, RequestBuilder, Url};

/// Returns a client builder with the request timeout `timeout` and the user agent
/// `cloud-connector`. The client does not follow redirects.
pub fn client_builder(timeout: Duration) -> ClientBuilder {
    // The installation fails if a crypto provider is already installed. This error is ignored,
    // because the process installs no provider other than `ring`.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("cloud-connector/", env!("CARGO_PKG_VERSION")))
}

/// Parses an `http://` or `https://` URL from the configuration.
///
/// # Errors
/// When the text is not an `http://` or `https://` URL. The error text is the reason.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err("the URL must start with http:// or https://".to_owned())
    }
}

/// Appends path segments to a base URL. The base URL may end with a slash.
///
/// # Errors
/// When `base_url` is not a valid base URL. The error text is the reason.
pub fn join_path(base_url: &str, segments: &[&str]) -> Result<Url, String> {
    let mut url = parse_url(base_url)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("the URL must not contain ? or #".to_owned());
    }
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    Ok(url)
}

/// Sends a request. Returns the status code and the response body.
///
/// Reads at most `max_body_bytes` of the response body and discards the rest. A truncated JSON body
/// is not valid JSON, so the caller gets a parse error.
///
/// # Errors
/// When no complete response arrives.
pub async fn send(
    request: RequestBuilder,
    max_body_bytes: usize,
) -> Result<(u16, Vec<u8>), reqwest::Error> {
    let mut response = request.header("accept", "application/json").send().await?;
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while body.len() < max_body_bytes
        && let Some(chunk) = response.chunk().await?
    {
        let remaining_bytes = max_body_bytes - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(remaining_bytes)]);
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_path_accepts_a_base_url_with_or_without_a_trailing_slash() {
        for base_url in [
            "http://a:8892",
            "http://a:8892/",
            "https://a/b",
            "https://a/b/",
        ] {
            let url = join_path(base_url, &["internal", "orgIds"]).unwrap();
            let base_url = base_url.trim_end_matches('/');
            assert_eq!(url.as_str(), format!("{base_url}/internal/orgIds"));
        }
    }

    #[test]
    fn join_path_reports_why_a_base_url_is_invalid() {
        for (base_url, expected) in [
            ("gateway", "relative URL"),
            ("ftp://a", "must start with http"),
            ("http://a/?b", "? or #"),
            ("http://a/#b", "? or #"),
        ] {
            let error = join_path(base_url, &["c"]).unwrap_err();
            assert!(error.contains(expected), "{base_url}: {error}");
        }
    }
}

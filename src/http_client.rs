//! Shared settings and helpers for HTTP requests to other services (tenant gateway, account
//! translator, sources). What each service is asked belongs to the module of that service.

use std::time::Duration;

use reqwest::{ClientBuilder, RequestBuilder, Url};

/// Returns a client builder with this request timeout, without redirects, and with our user agent.
pub fn client_builder(timeout: Duration) -> ClientBuilder {
    // Fails if a provider is already installed. That is harmless: every caller installs the same
    // one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("cloud-connector/", env!("CARGO_PKG_VERSION")))
}

/// Parses an `http://` or `https://` URL from the configuration.
///
/// # Errors
/// When the text is not such a URL. The error is the reason.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err("the URL must start with http:// or https://".to_owned())
    }
}

/// Appends path segments to a base URL, with or without a trailing slash.
///
/// # Errors
/// When `base` is not a valid base URL. The error is the reason.
pub fn join_path(base: &str, segments: &[&str]) -> Result<Url, String> {
    let mut url = parse_url(base)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("the URL must not contain ? or #".to_owned());
    }
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    Ok(url)
}

/// Sends a request. Returns the status and at most `max_bytes` of the response body. A longer body
/// is truncated; truncated JSON then fails to parse.
///
/// # Errors
/// When no complete response arrives.
pub async fn send(
    request: RequestBuilder,
    max_bytes: usize,
) -> Result<(u16, Vec<u8>), reqwest::Error> {
    let mut response = request.header("accept", "application/json").send().await?;
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while body.len() < max_bytes
        && let Some(chunk) = response.chunk().await?
    {
        let remaining = max_bytes - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(remaining)]);
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_path_accepts_a_base_with_or_without_trailing_slash() {
        for base in [
            "http://a:8892",
            "http://a:8892/",
            "https://a/b",
            "https://a/b/",
        ] {
            let url = join_path(base, &["internal", "orgIds"]).unwrap();
            let base = base.trim_end_matches('/');
            assert_eq!(url.as_str(), format!("{base}/internal/orgIds"));
        }
    }

    #[test]
    fn join_path_reports_why_a_base_is_invalid() {
        for (base, expected) in [
            ("gateway", "relative URL"),
            ("ftp://a", "must start with http"),
            ("http://a/?b", "? or #"),
            ("http://a/#b", "? or #"),
        ] {
            let error = join_path(base, &["c"]).unwrap_err();
            assert!(error.contains(expected), "{base}: {error}");
        }
    }
}

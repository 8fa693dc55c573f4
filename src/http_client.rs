//! Asking other services over HTTP: one way for all of them.

use std::time::Duration;

use reqwest::{ClientBuilder, RequestBuilder, Url};

/// A client that gives a request so long, follows nobody elsewhere, and says who it is.
pub fn client(timeout: Duration) -> ClientBuilder {
    // The first of the process counts; all of ours are the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("cloud-connector/", env!("CARGO_PKG_VERSION")))
}

/// An address as it stands in the configuration.
///
/// # Errors
/// When it cannot be one, with why.
pub fn address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|why| why.to_string())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err("it begins with neither http:// nor https://".to_owned())
    }
}

/// A path below such an address, whether or not that ends in a slash.
///
/// # Errors
/// When the address cannot be one, with why.
pub fn below(base: &str, path: &[&str]) -> Result<Url, String> {
    let mut url = address(base)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it holds a ? or #".to_owned());
    }
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path);
    }
    Ok(url)
}

/// Sends a request: the status of its answer, and no more than so many bytes of it. JSON that is cut
/// off cannot be read, and so is no answer.
///
/// # Errors
/// When there is no answer.
pub async fn ask(request: RequestBuilder, most: usize) -> Result<(u16, Vec<u8>), reqwest::Error> {
    let mut answer = request.header("accept", "application/json").send().await?;
    let status = answer.status().as_u16();
    let mut body = Vec::new();
    while body.len() < most
        && let Some(chunk) = answer.chunk().await?
    {
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_its_base_with_or_without_a_slash() {
        for base in [
            "http://a:8892",
            "http://a:8892/",
            "https://a/b",
            "https://a/b/",
        ] {
            let url = below(base, &["internal", "orgIds"]).unwrap();
            let base = base.trim_end_matches('/');
            assert_eq!(url.as_str(), format!("{base}/internal/orgIds"));
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        for (bad, why) in [
            ("gateway", "relative URL"),
            ("ftp://a", "neither http"),
            ("http://a/?b", "? or #"),
            ("http://a/#b", "? or #"),
        ] {
            let said = below(bad, &["c"]).unwrap_err();
            assert!(said.contains(why), "{bad}: {said}");
        }
    }
}

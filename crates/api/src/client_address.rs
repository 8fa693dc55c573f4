//! The address of the caller of a request. Behind a trusted proxy, the header `X-Forwarded-For`
//! contains it.

use std::net::IpAddr;
use std::str::FromStr;

use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, HeaderName};
use serde::{Deserialize, Deserializer, de};

use super::middleware::Peer;

const FORWARDED_FOR_HEADER: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the caller that trusted proxies report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForwardedFor(pub IpAddr);

impl ForwardedFor {
    /// Returns the address that trusted proxies report. Returns `None` if the peer is not a trusted
    /// proxy, or reports no address.
    pub fn of(request: &Request, trusted_proxies: &[IpRange]) -> Option<Self> {
        if trusted_proxies.is_empty() {
            return None;
        }
        let Peer(peer) = request.extensions().get()?;
        let address = forwarded_address(peer.ip(), request.headers(), trusted_proxies);
        (address != peer.ip().to_canonical()).then_some(Self(address))
    }
}

/// Returns the address of the caller: the address that trusted proxies report, or the remote address
/// of the TCP connection.
pub(super) fn client_address(extensions: &Extensions) -> Option<IpAddr> {
    let forwarded_for = extensions.get().map(|ForwardedFor(address)| *address);
    let peer_address = || extensions.get().map(|Peer(peer)| peer.ip().to_canonical());
    forwarded_for.or_else(peer_address)
}

/// Returns the rightmost address in `X-Forwarded-For` that is not a trusted proxy, if `peer` is a
/// trusted proxy. Otherwise returns `peer`.
///
/// Each proxy appends the address from which it received the request. So the addresses to the left
/// of the result were chosen by the caller. If an address cannot be parsed, the result is the trusted
/// proxy that reported it.
fn forwarded_address(peer: IpAddr, headers: &HeaderMap, trusted_proxies: &[IpRange]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted_proxies.iter().any(|range| range.contains(address));
    let mut address = peer.to_canonical();
    let header_values = headers.get_all(FORWARDED_FOR_HEADER).iter().rev();
    let mut forwarded_addresses = header_values
        .flat_map(|value| value.to_str().unwrap_or_default().rsplit(','))
        .map(parse_forwarded_address);
    while is_trusted(address) {
        match forwarded_addresses.next() {
            Some(Some(forwarded_address)) => address = forwarded_address.to_canonical(),
            Some(None) | None => break,
        }
    }
    address
}

/// Parses an IP address. Some proxies append the port.
fn parse_forwarded_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = text.parse().ok();
    address.or_else(|| {
        let address: std::net::SocketAddr = text.parse().ok()?;
        Some(address.ip())
    })
}

/// A range of IP addresses in CIDR notation, such as `10.0.0.0/8`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpRange {
    address: IpAddr,
    prefix_bits: u8,
}

impl IpRange {
    /// Returns whether the range contains an address. An IPv4 range also contains the IPv4-mapped
    /// IPv6 addresses of its addresses.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(range), IpAddr::V4(address)) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix_bits))
                    .unwrap_or(0);
                range.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(range), IpAddr::V6(address)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix_bits))
                    .unwrap_or(0);
                range.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

impl FromStr for IpRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "{text:?} is not an IP address or a range of IP addresses such as \"10.0.0.0/8\""
            )
        };
        let (address, prefix_bits) = match text.split_once('/') {
            Some((address, prefix_bits)) => (address, Some(prefix_bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let max_bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix_bits {
            Some(bits) => bits.parse().map_err(|_| invalid())?,
            None => max_bits,
        };
        if prefix_bits > max_bits {
            return Err(invalid());
        }
        Ok(Self {
            address,
            prefix_bits,
        })
    }
}

impl<'de> Deserialize<'de> for IpRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<IpRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn address_behind(trusted_proxies: &[&str], peer: &str, headers: &[&str]) -> String {
        let mut header_map = HeaderMap::new();
        for value in headers {
            header_map.append(FORWARDED_FOR_HEADER, value.parse().unwrap());
        }
        let peer = peer.parse().unwrap();
        forwarded_address(peer, &header_map, &ranges(trusted_proxies)).to_string()
    }

    #[test]
    fn the_header_of_an_untrusted_peer_is_ignored() {
        let address = |proxies| address_behind(proxies, "192.0.2.1", &["198.51.100.7"]);
        assert_eq!(address(&[]), "192.0.2.1");
        assert_eq!(address(&["10.0.0.0/8"]), "192.0.2.1");
        assert_eq!(address(&["192.0.2.1"]), "198.51.100.7");
    }

    #[test]
    fn the_rightmost_address_that_is_not_a_trusted_proxy_is_the_caller() {
        let proxies = ["10.0.0.0/8", "2001:db8::/32"];
        let address = |headers| address_behind(&proxies, "10.1.1.1", headers);
        // The caller has sent the header with a wrong address.
        assert_eq!(address(&["1.1.1.1, 203.0.113.5"]), "203.0.113.5");
        assert_eq!(address(&["203.0.113.5, 10.2.2.2"]), "203.0.113.5");
        assert_eq!(
            address(&["1.1.1.1", "203.0.113.5", "10.9.9.9"]),
            "203.0.113.5"
        );
        assert_eq!(address(&["203.0.113.5:4711,2001:db8::1"]), "203.0.113.5");
        assert_eq!(address(&["[2001:db9::1]:80"]), "2001:db9::1");
        assert_eq!(address(&["10.3.3.3"]), "10.3.3.3", "only trusted proxies");
        assert_eq!(address(&[]), "10.1.1.1");
    }

    #[test]
    fn an_address_that_cannot_be_parsed_is_replaced_by_the_proxy_that_reported_it() {
        let address = |header| address_behind(&["10.0.0.0/8"], "10.1.1.1", &[header]);
        assert_eq!(address("203.0.113.5, unknown, 10.2.2.2"), "10.2.2.2");
        assert_eq!(address("203.0.113.5, "), "10.1.1.1");
    }

    #[test]
    fn ipv4_mapped_addresses_are_ipv4_addresses() {
        let address = address_behind(&["10.0.0.0/8"], "::ffff:10.1.1.1", &["::ffff:203.0.113.5"]);
        assert_eq!(address, "203.0.113.5");
    }

    #[test]
    fn ranges_contain_the_addresses_with_their_prefix() {
        let contains = |range: &str, address: &str| {
            let range: IpRange = range.parse().unwrap();
            range.contains(address.parse().unwrap())
        };
        assert!(contains("0.0.0.0/0", "203.0.113.5") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "::1"));
        assert!(contains("10.1.0.0/17", "10.1.127.255"));
        assert!(!contains("10.1.0.0/17", "10.1.128.0"));
        assert!(contains("127.0.0.1", "127.0.0.1") && !contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("2001:db8::/33", "2001:db8:7fff::1"));
        assert!(!contains("2001:db8::/33", "2001:db8:8000::1"));
    }

    #[test]
    fn a_text_that_is_not_a_range_is_rejected() {
        for text in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "proxy.example",
            "10/8",
            "1.2.3.4/-1",
        ] {
            assert!(text.parse::<IpRange>().is_err(), "{text}");
        }
    }
}

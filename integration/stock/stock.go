// Package stock says how a stock ztunnel runs beside our processes: without a
// control plane, for one workload, with the certificates of isthmus ca serve and
// the local configuration of isthmus export ztunnel. Its SOCKS5 listener is the
// way in.
package stock

// Addresses of every stock ztunnel, inside its host. It says yes to a SOCKS5
// client before it has connected.
const (
	Socks = "127.0.0.1:15080"
	Ready = "127.0.0.1:15021"
	CA    = "127.0.0.1:15012" // where isthmus ca serve has to listen
)

// Environment is that of a ztunnel in a directory that has the CA in ca/, and
// the local configuration in NODE.yaml. The workload is namespace/name/service
// account; level is the log's, for example "info,access=info".
func Environment(node, workload, network, level string) []string {
	return []string{
		"CA_ADDRESS=https://" + CA, "CA_ROOT_CA=ca/ca.pem", "AUTH_TOKEN=unused",
		"XDS_ADDRESS=", "PROXY_MODE=dedicated", "UNSTABLE_ENABLE_SOCKS5=true", "ISTIO_META_DNS_CAPTURE=false",
		"ENABLE_ORIG_SRC=false", // it would dial the application from the client's address
		"IPV6_ENABLED=false", "RUST_LOG=" + level, "CLUSTER_ID=" + network,
		"PROXY_WORKLOAD_INFO=" + workload, "NODE_NAME=" + node, "NETWORK=" + network, "LOCAL_XDS_PATH=" + node + ".yaml",
	}
}

package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// components is the binary that make test-kubernetes builds.
const components = "KUBERNETES"

// cluster is etcd, kube-apiserver and kube-controller-manager, without nodes: tests do
// what a kubelet would.
type cluster struct {
	kubernetes.Interface
	config     *rest.Config
	kubeconfig string // of an administrator
	dir        string
	place      place
	etcd       string // its address
	ca         *x509.Certificate
	caKey      crypto.Signer
	server     *exec.Cmd
	serve      func() *exec.Cmd // starts the API server
}

// place is where a cluster runs: on loopback, or in a host of a world.
type place struct {
	space   *netspace.Space // nil: here
	host    string
	address string // of the API server

	names       []net.IP // others of the API server
	controllers string   // beside those that every cluster has
	data        string   // directory of etcd, which is kept; empty: one of the test's own
	audit       string   // user whose requests the API server writes to audit.log; empty: nobody's
}

// enter runs f where the processes of the place are started.
func (p place) enter(f func() error) error {
	if p.space == nil {
		return f()
	}
	return p.space.In(p.host, f)
}

// launch starts a process there, which ends with this one at the latest.
func (p place) launch(cmd *exec.Cmd) error {
	if p.space == nil {
		return netspace.Launch(cmd)
	}
	return p.space.Launch(p.host, cmd)
}

// needComponents returns the binary of the Kubernetes components, and skips without.
func needComponents(t *testing.T) string {
	t.Helper()
	binary := os.Getenv(components)
	if binary == "" {
		notRun(t, components+" names no binary of the Kubernetes components: run `make test-kubernetes`")
	}
	return binary
}

// notRun skips a test, except where it has to be run: in CI.
func notRun(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal("NOT RUN, which CI does not let pass: " + why)
	}
	t.Skip("NOT RUN: " + why)
}

// startCluster starts one on loopback, and ends it with the test.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	return startClusterWith(t, "")
}

// startClusterWith is startCluster with more controllers, by commas.
func startClusterWith(t *testing.T, controllers string) *cluster {
	t.Helper()
	return startClusterAt(t, place{address: "127.0.0.1", controllers: controllers}, freePorts(t, 4))
}

// startClusterAt is startCluster at a place; ports are of etcd, two, the API server and
// the controller manager.
func startClusterAt(t *testing.T, at place, ports []string) *cluster {
	t.Helper()
	binary := needComponents(t)
	c := &cluster{dir: t.TempDir(), place: at}
	etcd, peer, api, manager := ports[0], ports[1], ports[2], ports[3]
	server := "https://" + at.address + ":" + api
	c.certificates(t)
	began := time.Now()
	c.etcd = "127.0.0.1:" + etcd
	c.run(t, binary, "etcd", "--data-dir", cmp.Or(at.data, c.at("etcd-data")), "--listen-client-urls", "http://127.0.0.1:"+etcd, "--advertise-client-urls", "http://127.0.0.1:"+etcd,
		"--listen-peer-urls", "http://127.0.0.1:"+peer, "--initial-advertise-peer-urls", "http://127.0.0.1:"+peer, "--initial-cluster", "default=http://127.0.0.1:"+peer, "--log-level", "warn", "--unsafe-no-fsync")
	audit := c.audit(t)
	c.serve = func() *exec.Cmd {
		return c.run(t, binary, "kube-apiserver", append(audit, "--bind-address="+at.address, "--secure-port="+api, "--advertise-address="+at.address, "--endpoint-reconciler-type=none",
			"--etcd-servers=http://127.0.0.1:"+etcd, "--service-cluster-ip-range=10.96.0.0/16", "--tls-cert-file="+c.at("apiserver.crt"), "--tls-private-key-file="+c.at("apiserver.key"),
			"--client-ca-file="+c.at("ca.crt"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.at("sa.key"), "--service-account-signing-key-file="+c.at("sa.key"),
			"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount")...)
	}
	c.server = c.serve()
	c.kubeconfig = c.user(t, server, "admin", "system:masters")
	var err error
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig); err != nil {
		t.Fatal(err)
	}
	c.config.QPS, c.config.Burst = 1000, 1000
	if at.space != nil {
		c.config.Dial = c.dial
	}
	if c.Interface, err = kubernetes.NewForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	c.await(t)
	config := c.user(t, server, "system:kube-controller-manager", "system:masters")
	c.run(t, binary, "kube-controller-manager", "--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--bind-address=127.0.0.1", "--secure-port="+manager, "--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000", "--concurrent-service-endpoint-syncs=20", "--cert-dir="+c.dir, "--root-ca-file="+c.at("ca.crt"), strings.TrimSuffix("--controllers=endpointslice-controller,namespace-controller,"+at.controllers, ","))
	t.Logf("the cluster runs after %v", time.Since(began).Round(time.Millisecond))
	return c
}

// dial connects to an address as seen from where the cluster is.
func (c *cluster) dial(_ context.Context, _, address string) (net.Conn, error) {
	return c.place.space.Dial(c.place.host, address)
}

func (c *cluster) at(name string) string { return filepath.Join(c.dir, name) }

// audit returns the arguments by which the API server writes what a user asks, if anybody's.
func (c *cluster) audit(t *testing.T) []string {
	t.Helper()
	if c.place.audit == "" {
		return nil
	}
	policy := fmt.Sprintf(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["ResponseStarted","ResponseComplete","Panic"],"rules":[{"level":"Metadata","users":[%q]},{"level":"None"}]}`, c.place.audit)
	if err := os.WriteFile(c.at("audit.json"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--audit-policy-file=" + c.at("audit.json"), "--audit-log-path=" + c.at("audit.log"), "--audit-log-mode=blocking"}
}

// await waits until the API server is ready: three seconds, and more than a minute was seen
// on a machine with thirty processes for each of its processors.
func (c *cluster) await(t *testing.T) {
	t.Helper()
	eventually(t, 4*time.Minute, "the API server is ready", func() bool {
		return c.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error() == nil
	})
}

// run starts a component, and kills it when the test ends; its log is shown if that
// failed.
func (c *cluster) run(t *testing.T, binary, name string, args ...string) *exec.Cmd {
	t.Helper()
	link := c.at(name)
	if err := os.Symlink(binary, link); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	cmd := exec.Command(link, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := c.place.launch(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			b := log.Bytes()
			t.Logf("the end of the log of %s:\n%s", name, b[max(0, len(b)-2000):])
		}
	})
	return cmd
}

// eventually waits until what holds, and returns how long that took.
func eventually(t *testing.T, limit time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for tick := time.NewTicker(2 * time.Millisecond); !holds(); <-tick.C {
		if time.Since(began) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
	return time.Since(began)
}

// freePorts returns ports that nobody listens on now.
func freePorts(t *testing.T, n int) (out []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		out = append(out, port)
	}
	return out
}

// certificates makes a CA, the certificate of the API server, and the key of its tokens.
func (c *cluster) certificates(t *testing.T) {
	t.Helper()
	key := newKey(t)
	c.caKey = key
	c.ca = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c.ca, c.ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, "ca.crt", "CERTIFICATE", der)
	c.issue(t, "apiserver", pkix.Name{CommonName: "kube-apiserver"})
	c.writeKey(t, "sa.key", newKey(t))
}

// issue writes <file>.crt and <file>.key.
func (c *cluster) issue(t *testing.T, file string, who pkix.Name) {
	t.Helper()
	key := newKey(t)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: who, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: append([]net.IP{net.ParseIP(c.place.address)}, c.place.names...)}
	der, err := x509.CreateCertificate(rand.Reader, leaf, c.ca, key.Public(), c.caKey)
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, file+".crt", "CERTIFICATE", der)
	c.writeKey(t, file+".key", key)
}

// user writes the kubeconfig of a user, and returns its path.
func (c *cluster) user(t *testing.T, server, name string, groups ...string) string {
	t.Helper()
	file := fmt.Sprintf("user-%x", name)
	c.issue(t, file, pkix.Name{CommonName: name, Organization: groups})
	k := clientcmdapi.NewConfig()
	k.Clusters["test"] = &clientcmdapi.Cluster{Server: server, CertificateAuthority: c.at("ca.crt")}
	k.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificate: c.at(file + ".crt"), ClientKey: c.at(file + ".key")}
	k.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	k.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*k, c.at(file+".kubeconfig")); err != nil {
		t.Fatal(err)
	}
	return c.at(file + ".kubeconfig")
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (c *cluster) writeKey(t *testing.T, file string, k *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, file, "EC PRIVATE KEY", der)
}

func (c *cluster) write(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(c.at(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// forget takes keys with these prefixes out of etcd behind the back of the API server, as
// an old backup would not have them.
func (c *cluster) forget(t *testing.T, prefixes ...string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return c.place.space.Dial(c.place.host, address)
	}}}
	for _, p := range prefixes {
		end := []byte(p)
		end[len(end)-1]++
		body, _ := json.Marshal(map[string][]byte{"key": []byte(p), "range_end": end})
		r, err := client.Post("http://"+c.etcd+"/v3/kv/deleterange", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"deleted"`)) {
			t.Fatalf("delete %s: %s: %s", p, r.Status, answer)
		}
	}
}

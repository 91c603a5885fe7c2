// A go-control-plane server with the content of benchmarks/fanout.py. It prints its port, and changes the health of one
// of the endpoints with each line that it reads.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"runtime"
	"runtime/debug"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	name      = "c"
	endpoints = 100
)

func assignment(first core.HealthStatus) *endpoint.ClusterLoadAssignment {
	hosts := make([]*endpoint.LbEndpoint, endpoints)
	for n := range hosts {
		health := core.HealthStatus_HEALTHY
		if n == 0 {
			health = first
		}
		address := &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
			Address:       fmt.Sprintf("10.0.%d.%d", n>>8, n&255),
			PortSpecifier: &core.SocketAddress_PortValue{PortValue: 8000},
		}}}
		hosts[n] = &endpoint.LbEndpoint{
			HostIdentifier:      &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: address}},
			HealthStatus:        health,
			LoadBalancingWeight: wrapperspb.UInt32(4),
		}
	}
	return &endpoint.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpoint.LocalityLbEndpoints{{
			Locality:            &core.Locality{Region: "r", Zone: "z1"},
			LoadBalancingWeight: wrapperspb.UInt32(100),
			LbEndpoints:         hosts,
		}},
		Policy: &endpoint.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(140)},
	}
}

func main() {
	runtime.GOMAXPROCS(1) // one core, as the other servers of this benchmark
	assignments := cache.NewLinearCache(resource.EndpointType)
	clusters := cache.NewLinearCache(resource.ClusterType)
	update := func(health core.HealthStatus) {
		if err := assignments.UpdateResource(name, assignment(health)); err != nil {
			log.Fatal(err)
		}
	}
	update(core.HealthStatus_HEALTHY)
	if err := clusters.UpdateResource(name, &cluster.Cluster{Name: name}); err != nil {
		log.Fatal(err)
	}
	caches := &cache.MuxCache{
		Classify:      func(request *cache.Request) string { return request.GetTypeUrl() },
		ClassifyDelta: func(request *cache.DeltaRequest) string { return request.GetTypeUrl() },
		Caches:        map[string]cache.Cache{resource.EndpointType: assignments, resource.ClusterType: clusters},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(served, server.NewServer(context.Background(), caches, nil))
	go func() { log.Fatal(served.Serve(listener)) }()
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	health := core.HealthStatus_HEALTHY
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "collect" {
			debug.FreeOSMemory()
			fmt.Println("collected")
			continue
		}
		if health == core.HealthStatus_HEALTHY {
			health = core.HealthStatus_DRAINING
		} else {
			health = core.HealthStatus_HEALTHY
		}
		update(health)
	}
}

